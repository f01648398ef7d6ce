s/<n x d/<3 x d/g
s/<n x 1/<3 x 1/g
s/to n iter/to 3 iter/
