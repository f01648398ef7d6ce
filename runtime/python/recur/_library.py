"""Shared libraries of compiled rules, and their functions as Python functions."""
import collections
import ctypes
import inspect
import json
import os
from keyword import iskeyword

from . import _symbols, _tensors

SCHEMA = 1
LEADING = {"input": ("batch", "token", "head"), "param": ("head",), "state": ("sequence", "head"),
           "output": ("batch", "token", "head")}
INDICES = ("cu_seqlens", "state_index", "positions")
INDEX_DOCS = {"cu_seqlens": "[sequences + 1], int32 or int64: first tokens of sequences packed into a batch of 1, then the "
                            "number of tokens",
              "state_index": "[sequence], int32 or int64: the slot of each sequence where states are pools "
                             "[slot, head, ..]",
              "positions": "[sequence], int32 or int64: index of each sequence's first token"}
TYPE_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Error(RuntimeError):
    """A call that failed: the text of recur_last_error, and `code`, a negative recur_error."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


class _Metadata(ctypes.Structure):
    """recur_metadata, as far as it is read here."""
    _fields_ = [("abi_version", ctypes.c_int32)] + [(name, ctypes.c_char_p) for name in (
        "name", "spec", "spec_sha256", "rule_class", "form", "precision", "compiler", "json")]


class _Stream(ctypes.Structure):
    """recur_stream."""
    _fields_ = [("parallel_for", ctypes.c_void_p), ("context", ctypes.c_void_p), ("threads", ctypes.c_int32),
                ("cuda_stream", ctypes.c_void_p)]


# One argument of a C function: its keyword, the tensor's metadata (None for indices), and what it is:
# "read", "initial", "index", "output", "final" or "updated".
_Argument = collections.namedtuple("_Argument", "keyword tensor kind needed")


class _Function:
    """Calls NAME_forward or NAME_step."""

    def __init__(self, library, about, name):
        self.name = f"{about['name']}_{name}"
        self.library, self.about = library, about
        self.run = getattr(library, self.name)
        self.run.restype = ctypes.c_int32
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Stream)]
        self.size = getattr(library, f"{self.name}_workspace")
        self.size.restype = ctypes.c_int64
        self.size.argtypes = [ctypes.c_void_p]
        self.arguments = self._arguments(name == "step")
        self.results = [a for a in self.arguments if a.kind in ("output", "final")]
        self.result = collections.namedtuple(f"{self.name}_result", [a.keyword for a in self.results], rename=True)
        self.extras = [self._free(name) for name in ("workspace", "stream", "threads")]
        self.known = {a.keyword for a in self.arguments}
        self.needed = [a.keyword for a in self.arguments if a.needed]
        self.written = [a.keyword for a in self.arguments if a.kind in ("output", "final", "updated")]

    def _free(self, keyword):
        """As in the C header, a name that is taken, or a keyword of Python, gets a '_'."""
        while keyword in self.taken or iskeyword(keyword):
            keyword += "_"
        self.taken.add(keyword)
        return keyword

    def _arguments(self, step):
        self.taken = set()
        of = lambda role: [t for t in self.about["tensors"] if t["role"] == role]
        group = lambda tensors, prefix, kind, needed=True: [
            _Argument(self._free(prefix + t["name"]), t, kind, needed) for t in tensors]
        found = group(of("input") + of("param"), "", "read")
        if not step:
            found += group(of("state"), "initial_", "initial", False)
        self.indices = {name: self._free(name) for name in INDICES[step:]}
        found += [_Argument(keyword, None, "index", step and name == "positions" and self.about["uses_position"])
                  for name, keyword in self.indices.items()]
        found += group(of("output"), "", "output", False)
        return found + (group(of("state"), "", "updated") if step else group(of("state"), "final_", "final", False))

    def bind(self, given):
        """Sorts the keyword arguments: views in the order of the C structure, arrays by keyword, extras."""
        given = dict(given)
        workspace, stream, threads = [given.pop(name, None) for name in self.extras]
        for keyword in given:
            if keyword not in self.known:
                raise TypeError(f"{self.name}() has no argument '{keyword}'; its arguments are "
                                f"{', '.join([a.keyword for a in self.arguments] + self.extras)}")
        for keyword in self.needed:
            if given.get(keyword) is None:
                raise TypeError(f"{self.name}() needs the argument '{keyword}'")
        like = given[self.arguments[0].keyword]
        arrays = {keyword: x for keyword, x in given.items() if x is not None and x is not True and x is not False}
        if stream is None:
            stream = _tensors.current_stream(like)
        else:
            stream = int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream)))
            _tensors.wait(like, stream)
        views = {keyword: _tensors.view(keyword, x, stream) for keyword, x in arrays.items()}
        for a in self.results:
            if a.keyword not in arrays and (a.kind == "output" or given.get(a.keyword) is True):
                if a.kind == "final" and self.indices["state_index"] in arrays:
                    raise TypeError(f"'{a.keyword}' must be given, as its slots are picked by 'state_index'")
                shape, dtype = self.shape_of(a, views), self.dtype_of(a, views)
                arrays[a.keyword] = _tensors.empty(a.keyword, like, shape, dtype)
                views[a.keyword] = _tensors.view(a.keyword, arrays[a.keyword], stream)
        for keyword in self.written:
            if keyword in views and views[keyword].read_only:
                raise TypeError(f"'{keyword}' is written, but the array is read-only")
        return views, arrays, like, workspace, _Stream(None, None, int(threads or 0), stream)

    def shape_of(self, argument, views):
        """The shape of a result, from the arguments that are there; the runtime checks whether they fit together."""
        sizes = dict(next((v["dims"] for v in self.about["variants"]), {}))
        heads = 0
        for a in reversed(self.arguments):
            if a.tensor and a.keyword in views:
                shape = views[a.keyword].shape
                bound = dict(zip(a.tensor["shape"], shape))
                heads = max(heads, bound.get("head", 0))
                sizes.update(bound)
        sizes["head"] = heads
        sizes["sequence"] = sizes.get("batch", 0)
        packed = views.get(self.indices.get("cu_seqlens"))
        if packed and len(packed.shape) == 1:
            sizes["sequence"] = packed.shape[0] - 1
        return tuple(size if isinstance(size, int) else sizes[size] for size in argument.tensor["shape"])

    def dtype_of(self, argument, views):
        """The type of a result: that of the first variant that has those of the given arrays."""
        variants = self.about["variants"]
        for variant in variants:
            types = variant["dtypes"]
            if all(_tensors.CODES[types[a.tensor["name"]]] == views[a.keyword].dtype
                   for a in self.arguments if a.tensor and a.keyword in views):
                return types[argument.tensor["name"]]
        return variants[0]["dtypes"][argument.tensor["name"]]

    def pack(self, views):
        """The C structure of arguments."""
        pointers = [ctypes.addressof(views[a.keyword].tensor) if a.keyword in views else None for a in self.arguments]
        return (ctypes.c_void_p * len(pointers))(*pointers)

    def check(self, code):
        """Raises the runtime's error."""
        if code < 0:
            raise Error(self.library.recur_last_error().decode(), code)
        return code

    def workspace(self, given):
        """Bytes that a call needs."""
        views = self.bind(given)[0]
        return self.check(self.size(self.pack(views)))

    def call(self, given):
        """Runs the C function and returns its results."""
        views, arrays, like, workspace, where = self.bind(given)
        packed = self.pack(views)
        size = self.check(self.size(packed))
        on_gpu = any(v.tensor.device_type == _tensors.CUDA for v in views.values())
        if workspace is not None:
            room = _tensors.view("workspace", workspace, where.cuda_stream)
            bytes_given = room.tensor.bits // 8
            for extent in room.shape:
                bytes_given *= extent
            if bytes_given < size:
                raise ValueError(f"'workspace' must have {size} bytes, but it has {bytes_given}")
            if (room.tensor.device_type == _tensors.CUDA) != on_gpu:
                raise ValueError(f"'workspace' must be on the {'GPU' if on_gpu else 'CPU'}, as the tensors are")
            address = room.tensor.data + room.tensor.byte_offset if size else None
        elif not size:
            address = None
        elif on_gpu:
            workspace = _tensors.empty("workspace", like, (size,), "u8")
            room = _tensors.view("workspace", workspace, where.cuda_stream)
            address = room.tensor.data + room.tensor.byte_offset
        else:
            workspace = (ctypes.c_char * size)()
            address = ctypes.addressof(workspace)
        self.check(self.run(packed, address, ctypes.byref(where)))
        return self.result(*(arrays.get(a.keyword) for a in self.results))

    def describe(self, argument):
        """A line about an argument."""
        if not argument.tensor:
            text = INDEX_DOCS[argument.keyword.rstrip("_")]
            return text if argument.needed else f"{text}; may be left out"
        t = argument.tensor
        types = []
        for variant in self.about["variants"]:
            name = TYPE_NAMES[variant["dtypes"][t["name"]]]
            types += [] if name in types else [name]
        text = f"[{', '.join(map(str, t['shape']))}], {' or '.join(types)}"
        if t["doc"]:
            text += f": {t['doc']}"
        return text + {"read": "", "initial": "; at the start, may be left out: the rule's own initial value",
                       "output": "; written, and made where left out", "updated": "; updated in place",
                       "final": "; written at the end where given, True: made"}[argument.kind]

    def document(self):
        """The text that help() shows."""
        lines = [{True: "One token of each sequence: the token dimension is 1, the states change in place.",
                  False: "Sequences of tokens, from the initial states to the final ones."}[self.name.endswith("_step")],
                 ""]
        lines += [f"{a.keyword}: {self.describe(a)}" for a in self.arguments]
        lines += [f"{self.extras[0]}: memory that the call may use, {self.name}_workspace says how much; made where left out",
                  f"{self.extras[1]}: a CUDA stream, as a number or an object of torch or cupy; their current one where left "
                  "out. The call only enqueues.",
                  f"{self.extras[2]}: at most so many on the CPU; 0: all", "",
                  f"Returns a named tuple: {', '.join(self.result._fields)}.", "", "Compiled for:"]
        for v in self.about["variants"]:
            types = sorted({TYPE_NAMES[t] for t in v["dtypes"].values()} - ({"float32"} if len(set(v["dtypes"].values()))
                                                                           > 1 else set()))
            sizes = "".join(f" {n}={size}" for n, size in v["dims"].items())
            lines.append(f"  {v['target']}{sizes} {'/'.join(types)}")
        return "\n".join(lines)


def _python_function(function, call, name):
    """A plain function, so that help() and signatures work."""
    def rule_function(**arguments):
        return call(arguments)
    keywords = [(a.keyword, a.needed) for a in function.arguments] + [(name, False) for name in function.extras]
    keywords.sort(key=lambda k: not k[1])
    rule_function.__name__ = rule_function.__qualname__ = name
    rule_function.__signature__ = inspect.Signature([
        inspect.Parameter(keyword, inspect.Parameter.KEYWORD_ONLY,
                          default=inspect.Parameter.empty if needed else None) for keyword, needed in keywords])
    return rule_function


class Rule:
    """One compiled rule: `forward`, `step`, `forward_workspace`, `step_workspace`; what is known about it as `name`,
    `spec`, `spec_sha256`, `rule_class`, `form`, `precision`, `compiler`, and all of it as the dictionary `metadata`."""

    def __init__(self, library, name):
        function = getattr(library, f"{name}_metadata")
        function.restype = ctypes.POINTER(_Metadata)
        about = function().contents
        self.metadata = json.loads(about.json.decode())
        if self.metadata["schema"] != SCHEMA:
            raise Error(f"the metadata of rule '{name}' has schema {self.metadata['schema']}, but this package knows schema "
                        f"{SCHEMA}", -1)
        for attribute, _ in _Metadata._fields_[1:-1]:
            setattr(self, attribute, getattr(about, attribute).decode())
        for kind in ("forward", "step"):
            f = _Function(library, self.metadata, kind)
            call, workspace = _python_function(f, f.call, kind), _python_function(f, f.workspace, f"{kind}_workspace")
            call.__doc__ = f.document()
            workspace.__doc__ = f"Bytes of workspace that {kind} needs for these arguments."
            setattr(self, kind, call)
            setattr(self, f"{kind}_workspace", workspace)
        self.__doc__ = self.spec

    def __repr__(self):
        return f"<rule {self.name}: {', '.join(sorted({v['target'] for v in self.metadata['variants']}))}>"


class Library:
    """A shared library of compiled rules, each an attribute of its name; `rules` lists the names."""

    def __init__(self, path):
        self.path = os.fspath(path)
        self._library = ctypes.CDLL(os.path.abspath(self.path))
        self._library.recur_last_error.restype = ctypes.c_char_p
        found = set(_symbols.functions(self.path))
        self.rules = sorted(name[:-len("_metadata")] for name in found
                            if name.endswith("_metadata") and f"{name[:-len('_metadata')]}_forward" in found)

    def __getattr__(self, name):
        if name.startswith("_") or name not in self.rules:
            raise AttributeError(f"'{self.path}' has no rule '{name}'; it has {', '.join(self.rules) or 'none'}")
        rule = Rule(self._library, name)
        setattr(self, name, rule)
        return rule

    def __dir__(self):
        return sorted({*super().__dir__(), *self.rules})

    def __repr__(self):
        return f"<recur library {self.path}: {', '.join(self.rules)}>"


def load(path):
    """Loads a shared library that was linked from objects of recurc and librecur_rt."""
    return Library(path)
