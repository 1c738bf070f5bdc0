"""Known escapes from Python sandboxes, as code for a child that forges its own requests.

Each is an expression, or statements before one, over what `test_guard` passes: functions `cb`,
`giver` and `invoke`, an object `thing`, its class `kind`, a metaclass `meta`, a generator `gen`, a
list `items` and a dict `table` by reference.
"""

from __future__ import annotations

from membrane.frames import (
    AWAIT,
    CALL,
    CALL_BATCH,
    CONFIGURE,
    CONSTRUCT,
    DELETE,
    GET,
    GET_MANY,
    LOAD,
    OPERATE,
    SET,
)

# In the child: `ask` speaks to the caller without any proxy, `at` gives the handle of one.
PRELUDE = """
def bond_of(proxy):
    return object.__getattribute__(proxy, '_membrane_bond')
def at(proxy):
    return object.__getattribute__(proxy, '_membrane_handle')
def ask(op, target, name='', extra=None, values=()):
    return bond_of(cb).link.request(op, target, name, extra, values)[1]
def class_handle(proxy):
    return type(proxy)._membrane_description.handle
class Forged:
    def __init__(self, payload): self.payload = payload
def forge():
    plain = bond_of(cb).marshal.export
    def export(value):
        return value.payload if type(value) is Forged else plain(value)
    codec = bond_of(cb).codec
    for name in [n for n in dir(codec) if 'export' in n]:
        object.__setattr__(codec, name, export)
try:
    result = ('got', repr(attack()))
except BaseException as error:
    local = type(error).__module__ + '.' + type(error).__qualname__
    result = ('refused', getattr(error, 'remote_type', '') or local)
"""

FUNCTION_NAMES = [
    "__globals__",
    "__code__",
    "__closure__",
    "__defaults__",
    "__kwdefaults__",
    "__class__",
    "__dict__",
    "__builtins__",
    "__self__",
    "__func__",
    "__wrapped__",
    "__getattribute__",
    "__reduce__",
    "__reduce_ex__",
    "__init_subclass__",
    "__subclasshook__",
    "__call__",
    "__get__",
    "__module__",
    "__annotations__",
    "__type_params__",
    "func_globals",
    "func_closure",
    "func_code",
    "im_func",
]
OBJECT_NAMES = [
    "__class__",
    "__dict__",
    "__init__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setattr__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__sizeof__",
    "_private",
    "_Account__mangled",
    "secret",
    "reveal",
    "callback",
    "balance",
]
ODD_NAMES = [
    "a\0b",
    "reveal\0",
    "",
    " reveal",
    "reveal ",
    "re.veal",
    "\u017fecret",
    "__class__\0",
    "a" * 5000,
]
GENERATOR_NAMES = ["gi_frame", "gi_code", "gi_yieldfrom", "send", "throw", "close", "__class__"]
CLASS_NAMES = [
    "__mro__",
    "__subclasses__",
    "__bases__",
    "__base__",
    "mro",
    "__dict__",
    "__init__",
    "balance",
    "reveal",
]

ATTACKS: list[tuple[str, str]] = [
    *[(f"get {name} of a function", f"ask({GET}, at(cb), {name!r})") for name in FUNCTION_NAMES],
    *[(f"call {name} of a function", f"ask({CALL}, at(cb), {name!r})") for name in FUNCTION_NAMES],
    *[(f"get {name} of an object", f"ask({GET}, at(thing), {name!r})") for name in OBJECT_NAMES],
    *[(f"call {name} of an object", f"ask({CALL}, at(thing), {name!r})") for name in OBJECT_NAMES],
    *[
        (f"get the odd name {name[:12]!r}", f"ask({GET}, at(thing), {name!r})")
        for name in ODD_NAMES
    ],
    *[(f"set {name}", f"ask({SET}, at(thing), {name!r}, None, (1,))") for name in OBJECT_NAMES],
    *[(f"delete {name}", f"ask({DELETE}, at(thing), {name!r})") for name in OBJECT_NAMES],
    *[(f"get {name} of a generator", f"ask({GET}, at(gen), {name!r})") for name in GENERATOR_NAMES],
    *[
        (f"call {name} of a generator", f"ask({CALL}, at(gen), {name!r}, None, (1,))")
        for name in GENERATOR_NAMES
    ],
    *[
        (f"get {name} of a class", f"ask({GET}, kind._membrane_class[1], {name!r})")
        for name in CLASS_NAMES
    ],
    *[
        (f"call {name} of a class", f"ask({CALL}, kind._membrane_class[1], {name!r})")
        for name in CLASS_NAMES
    ],
    *[
        (f"operate {name}", f"ask({OPERATE}, at(thing), {name!r}, None, ('secret',))")
        for name in (
            "__getattribute__",
            "__getattr__",
            "__setattr__",
            "__reduce_ex__",
            "__init__",
            "__class__",
            "__subclasses__",
            "__get__",
            "__call__",
            "__format__",
            "__str__",
            "__repr__",
            "__eq__",
            "__hash__",
            "__dir__",
            "__getitem__",
            "reveal",
            "",
        )
    ],
    ("the class of an object, which was never passed", f"ask({CONSTRUCT}, class_handle(thing))"),
    ("call the class of an object", f"ask({CALL}, class_handle(thing))"),
    ("get of the class of an object", f"ask({GET}, class_handle(thing), 'balance')"),
    (
        "the class of a function, with code",
        f"ask({CONSTRUCT}, class_handle(cb), '', None, (1, {{}}))",
    ),
    ("construct an object", f"ask({CONSTRUCT}, at(thing))"),
    ("construct a function", f"ask({CONSTRUCT}, at(cb))"),
    (
        "construct by a metaclass",
        f"ask({CONSTRUCT}, meta._membrane_class[1], '', None, ('X', (), {{}}))",
    ),
    ("call a metaclass", f"ask({CALL}, meta._membrane_class[1], '', None, ('X', (), {{}}))"),
    ("the batch of a private name", f"ask({CALL_BATCH}, at(thing), '_private', [1, 1, 0])"),
    ("the batch of a method", f"ask({CALL_BATCH}, at(thing), 'reveal', [1, 1, 0])"),
    ("a batch that does not fit", f"ask({CALL_BATCH}, at(cb), '', [10**9, 1, 0])"),
    ("a batch of less than none", f"ask({CALL_BATCH}, at(cb), '', [-1, 1, 0])"),
    ("a batch without a layout", f"ask({CALL_BATCH}, at(cb), '', None)"),
    ("a batch with a broken layout", f"ask({CALL_BATCH}, at(cb), '', [1, 1, [[-1, ['x']]]])"),
    ("keywords that do not fit", f"ask({CALL}, at(cb), '', ['a', 'b'], (1,))"),
    ("keywords that are no names", f"ask({CALL}, at(cb), '', [1], (1,))"),
    ("keywords twice", f"ask({CALL}, at(cb), '', ['a', 'a'], (1, 2))"),
    ("load a class here", f"ask({LOAD}, 0, 'os:_Environ')"),
    ("configure", f"ask({CONFIGURE}, 0, '', [])"),
    ("an operation that there is not", "ask(8, at(thing))"),
    ("an operation of the future", "ask(999, at(cb))"),
    ("await an object", f"ask({AWAIT}, at(thing))"),
    ("await a method", f"ask({AWAIT}, at(thing), 'reveal')"),
    ("await by a private operator", f"ask({AWAIT}, at(thing), '__init__')"),
    ("a forged handle", f"ask({CALL}, 4242)"),
    ("a negative handle", f"ask({CALL}, -1)"),
    ("handle zero", f"ask({CALL}, 0)"),
    ("a handle of another type", f"ask({CALL}, 'cb')"),
    ("True for handle 1", f"ask({CALL}, True)"),
    ("a float for a handle", f"ask({CALL}, 1.0)"),
    ("what a callback returns", f"ask({CALL}, at(giver))"),
    ("the function in a list", f"ask({OPERATE}, at(items), '__getitem__', None, (0,))"),
    ("the function out of a list", f"ask({CALL}, at(items), 'pop', None, (0,))"),
    (
        "the function by a sort",
        f"ask({CALL}, at(items), 'sort', ['key'], (lambda item: stolen.append(item) or 0,))",
    ),
    (
        "the function by a comparison",
        f"ask({OPERATE}, at(items), '__contains__', None, (Thief(),))",
    ),
    ("the object in an iteration", "list(items)"),
    ("the values of a table", "list(table.values())"),
    ("the text of a list", f"ask({OPERATE}, at(items), '__repr__')"),
    ("the class of a list", f"ask({GET}, at(items), '__class__')"),
    ("memory by repetition", f"ask({OPERATE}, at(items), '__mul__', None, (10**12,))"),
    ("a bound method of a list", f"ask({GET}, at(items), 'append')"),
    ("a container's reduce", f"ask({CALL}, at(items), '__reduce_ex__', None, (2,))"),
    (
        "a method that is smuggled as an argument",
        f"forge(); ask({CALL}, at(invoke), '', None, (Forged([1, at(thing), 'reveal']),))",
    ),
    (
        "globals smuggled as an argument",
        f"forge(); ask({CALL}, at(invoke), '', None, (Forged([1, at(cb), '__globals__']),))",
    ),
    (
        "a method that a mirror passes",
        "ask({CALL}, at(invoke), '', None, (thing.reveal,))".replace("{CALL}", str(CALL)),
    ),
    ("reading many", f"outcome({GET_MANY}, at(thing), ['secret'])"),
    ("reading what is no list", f"ask({GET_MANY}, at(thing), '', 7)"),
    ("the frame of an error", "error_frame()"),
    ("a class attribute by a mirror", "kind.balance"),
    ("a walk by str.format", "'{0.__globals__[SECRET]}'.format(cb)"),
    (
        "a walk by subclasses",
        "[c for c in type(cb).__mro__[-1].__subclasses__() if c.__name__ == 'Account'][0]",
    ),
]

TOOLS = f"""
stolen = []
class Thief:
    def __eq__(self, other):
        stolen.append(other)
        return True
    __hash__ = None
def outcome(op, target, names):
    extra, values = bond_of(cb).link.request(op, target, '', names, ())
    raise bond_of(cb).unpack_error(extra[1][0][1], values[1:])
def error_frame():
    try:
        ask({CALL}, at(cb), 'nothing')
    except Exception as error:
        handle = error._membrane_origin[1]
        for name in ('__traceback__', 'args', '__context__', 'with_traceback', 'name'):
            try:
                return ask({GET}, handle, name)
            except Exception as refused:
                last = refused
        raise last
"""
