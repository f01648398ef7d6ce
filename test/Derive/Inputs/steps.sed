s/<n x \([a-z0-9]*\) x 1>/<3 x \1 x 1>/g
s/to n iter/to 3 iter/
