"""The functions that a shared library defines, read from its file."""
import struct

SECTION_DYNSYM = 11
FUNCTION = 2


def functions(path):
    """Names of the functions that an ELF file for 64-bit machines defines for others; empty for another file."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:5] != b"\x7fELF\x02" or data[5] not in (1, 2):
        return []
    order = "<" if data[5] == 1 else ">"
    table, = struct.unpack_from(order + "Q", data, 40)
    size, count = struct.unpack_from(order + "HH", data, 58)
    # Of each section: name, type, flags, address, offset, size, link.
    sections = [struct.unpack_from(order + "IIQQQQI", data, table + i * size) for i in range(count)]
    names = []
    for section in sections:
        if section[1] != SECTION_DYNSYM:
            continue
        texts = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from(order + "IBBH", data, at)
            if info & 15 == FUNCTION and index:
                start = texts + name
                names.append(data[start:data.index(b"\0", start)].decode())
    return names
