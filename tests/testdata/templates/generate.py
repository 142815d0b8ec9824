"""Writes the recorded cases of the template tests: what jinja2 prints, in the environment that Hugging Face transformers
sets up for chat templates (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, its own tojson).

    python3 generate.py          # needs jinja2 3.1.6; writes the .jsonl files beside this file

Each line of expressions.jsonl is {"template", "output"} or, where jinja2 fails, {"template", "error"}: then quire must fail
too, and where "message" is set its message must contain that text. The variables are in variables.json. Output that shows
addresses of Python objects is left out. The clock of strftime_now stands at 2023-11-14 22:13:20 UTC."""

import copy
import datetime
import itertools
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2023, 11, 14, 22, 13, 20)


class Generation(jinja2.ext.Extension):
    """The block that transformers adds for training; here it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_print", [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: NOW.strftime(text)
    return env


def run(template, variables):
    case = {"template": template}
    try:
        case["output"] = environment().from_string(template).render(**copy.deepcopy(variables))
    except jinja2.exceptions.UndefinedError as error:
        case["error"] = case["message"] = str(error)
    except Exception as error:
        case["error"] = f"{type(error).__name__}: {error}"
        if type(error) is jinja2.exceptions.TemplateError:
            case["message"] = str(error)
    return case


VARS = {
    "i": 7, "n": -3, "f": 2.5, "t": True, "no": False, "null": None, "s": "Hello World", "e": "", "u": "Größe → 你好 😀",
    "ws": " \t padded\n ", "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": [1, {"x": None}], "c d": "v"},
    "m": [{"role": "user", "content": "hi", "n": 2}, {"role": "tool", "n": 1}, {"role": "user", "content": "bye", "n": 3}],
    "big": 1e20, "small": 1e-7, "nested": {"items": 5, "get": 6, "k": {"deep": [10, 20]}}, "q": "it's \"q\"\n\\",
}

EXPRESSIONS = """
1 + 2 * 3
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7 / 2
6 / 2
7.5 // 2
-7.5 % 2
1 + 2.5
0.1 + 0.2
1e3
1.5e-5
1e16
123456789012345680.0
1e15
-0.0
1_000
0x1F
0b101
0o17
i / 0
i % 0
i + s
s + i
s + ' ' + e
s ~ i ~ none ~ true ~ f
'a' 'b' "c"
'a' * 3
3 * 'ab'
[1] * 2
[1, 2] + [3]
(1, 2) + (3,)
[1] + (2,)
-s
+i
-i
-t
t + t
not t
not not e
i and s
e or s
e or none
none and 1
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
'1' == 1
none == none
none < 1
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
(1,) < (1, 2)
[1, 'a'] < [1, 2]
s == 'Hello World'
s != 'x'
i >= 7
i > 7
i <= 6
'lo' in s
'x' not in s
3 in l
9 in l
'a' in d
'z' in d
1 in s
1 in i
l in l
[1] in d
missing in l
missing in s
'x' in missing
none in [none]
i if t else n
i if no else n
i if no
(i if no) is defined
i if no else n if no else 5
l[0]
l[-1]
l[5]
l[5].x
l['x']
l[1:]
l[:1]
l[::-1]
l[::2]
l[-2:]
l[5:]
l[2:0:-1]
l[::0]
l[true]
l[1.0]
s[0]
s[-1]
s[1:4]
s[::-1]
s[::2]
u[2:4]
u[8]
u[::-1]
missing[1:]
d[1:]
i[1:]
(1, 2, 3)[1:]
range(5)[1:3]|list
d.b
d['b']
d.a[1].x
d.missing
d.missing.more
d['missing']
d['c d']
d.items()
d.keys()
d.values()|list
d.get('b')
d.get('z')
d.get('z', 5)
d.get([1])
nested.items
nested['items']
nested.get
nested['get']
nested.k.deep.1
missing
missing.x
missing['x']
missing()
missing + 1
1 + missing
missing ~ 'x'
missing == missing
missing == none
missing < 1
-missing
missing or 'd'
missing|length
missing|list
missing|trim
missing|upper
missing|join(',')
missing|items|list
missing|int
missing|tojson
missing|default('d')
missing|default
missing|first
missing is iterable
missing is sequence
missing is callable
missing is string
missing is mapping
missing is none
null|default('d')
null|default('d', true)
e|default('d', boolean=true)
0|d(1, true)
null
null.x
null.x.y
null()
s()
i.x
true
False
None
[1, 'a', 2.0, none, true, missing]
(1,)
(1, 2)
()
[]
{}
{'a': 1, 'b': [2]}
{1: 'x', true: 'y', 1.0: 'z'}
{(1, 2): 3}
{[1]: 2}
{'a': 1}.a
{'k': 'v'}|items|list
1, 2
q
[q]
['it\\'s', "d\\"q", 'both\\'"']
['\\n\\t\\r\\\\', '\\x00\\x1f\\x7f', '\\u00e9\\u200b\\U0001F600', '\\u2028']
'\\x41\\u0042\\103\\q'
'tab\\there'
[u]
d
m[0]
f
f * 2
big
small
[1.0, 1e100, 1e-5, 0.0001, 100000.0]
s.upper()
s.lower()
s.title()
s.capitalize()
'hello wORLD'.capitalize()
'they\\'re bill\\'s'.title()
u.upper()
'STRASSE ß ﬁ'.upper()
'ᾀᾏᾗᾠᾯ'.upper()
'ᾀᾏ ᾯᾠ'.title()
'ÄÖÜ'.lower()
s.split()
s.split(' ')
s.split('o')
s.split('o', 1)
' a  b '.split()
' a  b c '.split(none, 1)
' a b '.split(' ')
''.split()
''.split(',')
'a,b,c'.rsplit(',', 1)
'a b c'.rsplit(none, 1)
s.split('')
'abc'.split('b', maxsplit=1)
'a\\nb\\r\\nc\\u2028d\\n'.splitlines()
'a\\nb'.splitlines(true)
ws.strip()|tojson
ws.lstrip()|tojson
ws.rstrip()|tojson
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'äöaöä'.strip('äö')
'\\u3000a\\x1c'.strip()|tojson
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('World', 6)
s.startswith('H', 0, 0)
s.endswith('d')
s.endswith('World', -5)
s.startswith(1)
s.startswith()
s.replace('o', '0')
s.replace('o', '0', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
'aaa'.replace('aa', 'b')
s.replace('l')
s.find('o')
s.rfind('o')
s.find('z')
s.index('o')
s.index('z')
u.find('你')
s.count('o')
'aaa'.count('aa')
'abc'.count('')
','.join(['a', 'b'])
','.join([1])
','.join('abc')
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('=')
'12'.isdigit()
'1a'.isdigit()
'ab'.isalpha()
'a1'.isalnum()
' '.isspace()
'aB'.islower()
'ab1'.islower()
'AB'.isupper()
''.isupper()
s.nothing
s.nothing()
l.append(4)
d.update({'a': 1})
d.pop('b')
l.index(1)
l.count(3)
l.index(9)
(1, 2, 1).count(1)
d.copy() == d
s|length
u|length
l|length
d|length
i|length
none|length
s|upper|lower|title
'foo-bar (baz) [x] it\\'s'|title
'hello'|capitalize
i|upper
none|lower
l|string
ws|trim|tojson
'xxaxx'|trim('x')
i|trim
s|replace('o', '0')
s|replace('o', '0', 1)
i|replace('7', '8')
s|replace('o')
l|join
l|join(', ')
l|join(d='-')
m|join(',', attribute='role')
m|join(',', attribute='missing')
s|join('.')
d|join(',')
i|join
[1, none, true, 'x']|join('|')
l|list
s|list
d|list
i|list
none|list
d|items|list
l|first
l|last
e|first
[]|last
s|first
s|last
d|first
l|reverse|list
s|reverse
i|reverse
l|sort
l|sort(reverse=true)
w|sort
w|sort(case_sensitive=true)
m|sort(attribute='n')|map(attribute='n')|list
[1, 'a']|sort
d|dictsort
{'B': 1, 'a': 2}|dictsort
{'B': 1, 'a': 2}|dictsort(true)
{'b': 1, 'a': 2}|dictsort(by='value', reverse=true)
['a', 'A', 'b', 'a']|unique|list
['a', 'A']|unique(true)|list
[1, 1.0, true, 2]|unique|list
m|unique(attribute='role')|map(attribute='role')|list
l|min
l|max
w|min
w|max(case_sensitive=true)
[]|max
[]|max is undefined
m|max(attribute='n')
l|sum
m|sum(attribute='n')
l|sum(start=10)
['a']|sum
w|map('upper')|list
w|map('upper')|join
m|map(attribute='role')|list
m|map(attribute='content')|list
m|map(attribute='content', default='-')|list
m|map(attribute='content')|map('default', '?')|list
w|map('replace', 'b', 'x')|list
w|map('nosuchfilter')|list
w|map|list
[[1, 2], [3]]|map('first')|list
[[1, 2], [3]]|map('join', '-')|join(' ')
[{'a': {'b': 1}}, {'a': {'b': 2}}]|map(attribute='a.b')|list
[[1, 2], [3, 4]]|map(attribute=1)|list
[[1, 2], [3, 4]]|map(attribute='0')|list
[1, 0, 2, none]|select|list
[1, 0, 2, none]|reject|list
l|select('odd')|list
l|reject('odd')|list
l|select('gt', 1)|list
l|select('in', [1, 2])|list
l|select('nosuchtest')|list
m|selectattr('role', 'equalto', 'user')|list|length
m|selectattr('role', 'eq', 'tool')|map(attribute='n')|list
m|selectattr('content')|list|length
m|selectattr('content', 'defined')|list|length
m|rejectattr('content', 'defined')|list|length
m|rejectattr('role', '==', 'user')|list
m|selectattr('n', '>', 1)|map(attribute='n')|join(',')
m|selectattr('role', 'in', ['user', 'system'])|list|length
m|selectattr|list
(m|selectattr('role', 'equalto', 'nobody')) is true
1 if m|selectattr('role', 'equalto', 'nobody') else 2
1 if m|selectattr('role', 'equalto', 'nobody')|list else 2
m|selectattr('n')|length
(m|map(attribute='n'))[0]
(m|map(attribute='n'))|first
i|map('upper')|list
s|indent
'a\\nb\\n\\nc'|indent
'a\\nb\\n\\nc'|indent(2)
'a\\nb\\n\\nc'|indent(2, true)
'a\\nb\\n\\nc\\n'|indent(2, blank=true)
'a\\nb'|indent('> ', first=true)
i|indent
''|indent(first=true)
'42'|int
'42.9'|int
' 42 '|int
'x'|int
'x'|int(5)
'0x1f'|int(base=16)
'ff'|int(0, 16)
'101'|int(base=2)
'1_000'|int
'-5'|int
'+5'|int
'--5'|int
2.9|int
-2.9|int
none|int
l|int
true|int
'1.5'|float
'x'|float
'x'|float(2.0)
3|float
'1e3'|float
'nan'|float
n|abs
-2.5|abs
'x'|abs
2.5|round
3.5|round
2.675|round(2)
1234.5|round(-2)
1250|round(-2)
5|round
2.1|round(0, 'ceil')
2.9|round(method='floor')
2.15|round(1, 'ceil')
2.5|round(0, 'nosuch')
'x'|round
s|safe
i|safe
l|safe
d|tojson
d|tojson(indent=2)
d|tojson(indent=0)
d|tojson(2)
d|tojson(indent='--')
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
d|tojson(indent=2, separators=(', ', ': '))
u|tojson
u|tojson(ensure_ascii=true)
q|tojson
'\\x00\\x1f\\x7f\\u2028</script>&'|tojson
'\\x7f'|tojson(true)
[1, 1.0, -0.0, 1e16, 1e-7, true, none, 'x', [], {}, ()]|tojson
[[], {}]|tojson(indent=1)
{1: 'a', true: 'b', none: 'c', 2.5: 'd'}|tojson
{'inf'|float: 'a', '-inf'|float: 'b', 'nan'|float: 'c'}|tojson
{(1, 2): 3}|tojson
{2: 'a', 'x': 1}|tojson(sort_keys=true)
range(3)|tojson
d.items()|tojson
namespace|tojson
(1, (2, 3))|tojson
i is defined
missing is defined
missing is not defined
missing is undefined
null is none
null is not none
not null is none
s is string
i is string
i is number
t is number
f is number
i is integer
t is integer
f is float
i is float
t is boolean
i is boolean
t is true
1 is true
no is false
d is mapping
l is mapping
l is iterable
s is iterable
i is iterable
d is iterable
none is iterable
l is sequence
d is sequence
s is sequence
i is sequence
(l|map('string')) is sequence
(l|map('string')) is iterable
d.items() is sequence
range(3) is sequence
range is callable
s.upper is callable
s is callable
3 is odd
3 is even
0 is even
9 is divisibleby 3
9 is divisibleby(2)
9 is divisibleby 0
's' is odd
s is lower
'abc' is lower
'ABC' is upper
1 is lower
1 is sameas 1
none is sameas none
true is sameas 1
l is sameas l
1 is eq 1
1 is equalto 2
1 is ne 2
1 is lt 2
1 is le 1
1 is gt 2
1 is ge 1
1 is lessthan 2
3 is greaterthan 2
1 is in [1, 2]
1 is not in [1, 2]
'a' is in 'abc'
'upper' is filter
'nosuch' is filter
'odd' is test
i is odd and s is string
i is not even or false
s is string|upper
i is nosuchtest
i|nosuchfilter
i is defined(1)
range(3)
range(1, 4)|list
range(5, 0, -2)|list
range(0, 10, 3)
range(3)|join(',')
range('x')
range(1, 2, 0)
range(100001)
range(3)[1]
range(3)|last
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ('b', 2)])
dict([1])
dict(d).b
namespace(a=1).a
namespace(a=1).b
namespace({'x': 1}, y=2).x
namespace(a=1)
namespace()
raise_exception('stop: ' ~ i)
raise_exception()
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %H:%M:%S %A %j')
strftime_now('100%%')
strftime_now()
s.__class__
s['__class__']
d.__class__.__mro__
l.__len__()
foo
foo.bar.baz
(1, 2)[0], [3][0]
1 +
1 2
{'a': 1
[1, 2
(1
'unclosed
a b
1..2
.5
5.
s | 
@
#
i++
i += 1
not
in
is
if
x = 1
f(**d)
f(*l)
i.
[,]
{,}
[1,]
{'a': 1,}
(1,2,)
dict(a=1, a=2)
dict(a=1, 2)
true.x
none.x.y
1.e3
'a'.b.c
""".strip("\n").split("\n")

# Methods of texts, format strings, and filters of values without elements.
METHODS = (HERE / "methods.txt").read_text().splitlines()

STATEMENTS = [
    # if
    "{% if t %}a{% endif %}", "{% if no %}a{% else %}b{% endif %}", "{% if no %}a{% elif i == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% elif e %}c{% endif %}d", "{% if %}a{% endif %}", "{% if t %}a", "{% endif %}",
    "{% if t %}a{% else %}b{% elif t %}c{% endif %}", "{% if t, no %}x{% endif %}", "{% if t %}a{% endfor %}",
    "{% if missing.x %}a{% endif %}", "{% if i == 7 and s and not e %}ok{% endif %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in s %}{{ x }}.{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}", "{% for a, b in [1] %}a{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}a{% endfor %}", "{% for a, b in ['xy', (1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{% endfor %}", "{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
    "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% for y in l %}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.nothing }}{% endfor %}", "{{ loop }}", "{{ loop.index }}", "{% for x in l %}{% endfor %}{{ x }}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}",
    "{% set x = 'o' %}{% for x in l %}{{ x }}{% endfor %}{{ x }}", "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ x }}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %};{% endfor %}",
    "{% break %}", "{% continue %}", "{% for x in l %}{% macro a() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in l|sort %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in l[::-1] %}{{ x }}{% endfor %}",
    "{% for m in m if m.role == 'user' %}{{ m.content }}{{ loop.index }}{% endfor %}", "{% for x in (l if t else w) %}{{ x }}{% endfor %}",
    "{% set g = l|map('string') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% else %}gone{% endfor %}",
    "{% set g = l|select %}{{ g|first }}{{ g|list }}", "{% set g = l|select %}{{ 1 in g }}{{ g|list }}",
    "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}",
    "{% for in l %}{% endfor %}", "{% for x l %}{% endfor %}", "{% for x in l %}", "{% for 1 in l %}{% endfor %}",
    "{% for x in l %}{{ loop.index is odd }}{% endfor %}", "{% for loopvar in l %}{{ loopvar }}{{ loop.revindex }}{% endfor %}",
    # set
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x, y = [1] %}", "{% set (x, y) = l[:2] %}{{ x }}{{ y }}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | trim | upper | replace('A', 'x') %}\n abc\n{% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% if t %}{% set x = 1 %}{% endif %}{{ x }}", "{% if no %}{% set x = 1 %}{% endif %}{{ x is defined }}",
    "{% set i = i + 1 %}{{ i }}", "{% set x = x %}{{ x }}", "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{% set ns.b = 3 %}{{ ns.b }}",
    "{% set ns = namespace() %}{% for x in l %}{% set ns.last = x %}{% endfor %}{{ ns.last }}", "{% set d.x = 1 %}", "{% set missing.x = 1 %}", "{% set ns = namespace(n=0) %}{% set ns.n, y = 5, 6 %}{{ ns.n }}{{ y }}",
    "{% set ns = namespace(t='') %}{% set ns.t %}block{% endset %}{{ ns.t }}", "{% set x = %}", "{% set 1 = x %}", "{% set true = 1 %}", "{% set x 1 %}", "{% set x = 1 y %}", "{% set x %}abc",
    "{% set x = none %}{{ x is none }}", "{% set x = l|map('string')|list %}{{ x }}", "{% set x=1%}{{x}}", "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    # macros
    "{% macro a() %}x{% endmacro %}{{ a() }}{{ a() }}", "{% macro a(x) %}[{{ x }}]{% endmacro %}{{ a(1) }}{{ a('b') }}{{ a() }}",
    "{% macro a(x, y=2) %}{{ x }}{{ y }}{% endmacro %}{{ a(1) }}{{ a(1, 3) }}{{ a(y=5, x=4) }}{{ a(x=1, y=none) }}",
    "{% macro a(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ a(1) }}", "{% macro a(x) %}{% endmacro %}{{ a(1, 2) }}", "{% macro a(x) %}{% endmacro %}{{ a(z=2) }}",
    "{% macro a(x) %}{% endmacro %}{{ a(1, x=2) }}", "{% macro a() %}{{ varargs }}{% endmacro %}{{ a(1, 2) }}", "{% macro a() %}{{ kwargs }}{% endmacro %}{{ a(k=1, j=2) }}",
    "{% macro a(x) %}{{ x }}{{ varargs|join('-') }}{{ kwargs.k }}{% endmacro %}{{ a(1, 2, 3, k=4) }}", "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set v = 1 %}{% macro a() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ a() }}", "{% macro a() %}{{ late }}{% endmacro %}{% set late = 2 %}{{ a() }}",
    "{% macro a() %}{% set inner = 1 %}{% endmacro %}{{ a() }}{{ inner is defined }}", "{% for x in l %}{% macro a() %}{{ x }}{% endmacro %}{{ a() }}{% endfor %}",
    "{% macro a(x) %}{{ x|upper }}{% endmacro %}{{ a('b') ~ a('c') }}{{ a('d')|length }}", "{% macro a() %} x {% endmacro %}[{{ a()|trim }}]", "{% macro a(x) %}{% for y in x %}{% if y is iterable and y is not string %}({{ a(y) }}){% else %}{{ y }}{% endif %}{% endfor %}{% endmacro %}{{ a([1, [2, [3]], 4]) }}",
    "{% macro a(x=1, y) %}{% endmacro %}", "{% macro a(1) %}{% endmacro %}", "{% macro %}{% endmacro %}", "{% macro a() %}", "{{ a() }}{% macro a() %}x{% endmacro %}", "{% macro a() %}x{% endmacro %}{{ a }}",
    "{% macro a(x) %}{{ x }}{% endmacro %}{{ l|map('string')|map('upper')|join }}{{ a }}", "{% macro a(x) %}{{ x is defined }}{{ x.y is defined }}{% endmacro %}{{ a() }}",
    "{% macro a() %}<{{ caller() }}>{% endmacro %}{% call a() %}in{% endcall %}", "{% macro a() %}{{ caller(1, 2) }}{% endmacro %}{% call(x, y) a() %}{{ x }}-{{ y }}{% endcall %}", "{% macro a() %}x{% endmacro %}{% call a() %}in{% endcall %}",
    "{% macro a() %}{{ caller is defined }}{% endmacro %}{{ a() }}", "{% call 5 %}{% endcall %}",
    # other blocks
    "{% filter upper %}a{{ s }}b{% endfilter %}", "{% filter trim|replace('a', 'b') %} aaa {% endfilter %}", "{% filter nosuch %}{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}{{ x is defined }}", "{% with x = i %}{% with i = 1 %}{{ x }}{{ i }}{% endwith %}{{ i }}{% endwith %}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z is defined }}",
    "{% with a = 1, b = a %}{{ b }}{% endwith %}", "a{# comment #}b", "a{# {{ nope }} {% if %} #}b", "a{# unclosed", "{% raw %}{{ a }} {% if %}{% endraw %}", "{% raw %}x", "{%- raw -%} {{ x }} {%- endraw -%} y",
    "a {%- raw %}\n b{% endraw %}\nc", "  {% raw %}  a\n  {% endraw %}\nb", "{% generation %}a{{ i }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}", "{% do l.append(1) %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
    "{% nosuch %}", "{% %}", "{{ }}", "{{", "{%", "{{ 'a' }", "{{ a }}}", "{ { a } }", "{{ {} }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{'}}'}}", "{% set x = '%}' %}{{ x }}", "{{ '{{' }}{{ '{%' }}", "}} %} #}", "{{ i }}{{ s }}",
    "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{{ cycler() }}",
    "{{ i\n}}", "{{\n  s\n  |  upper  \n}}", "{{ l[\n0\n] }}", "\n\n{{ i }}\n\n", "{{ i }}\n", "{{ i }}\n\n", "a\r\nb\rc", "{{ 'a\nb' }}", "", "\n", "   ", "{% if t %}\n{% endif %}\n", "{{- i -}}", " {{- i -}} x", "a {{+ i }} b", "{{-1}}", "{{ -1 }}", "{{--1}}",
    "{{ 'ü' }}{{ '你' ~ '好' }}", "{{ u }}", "Ünï {{ i }} 你好", "{% set ä = 1 %}{{ ä }}", "{{ [range(2)|list, dict(a=1)] }}", "{% set range = 5 %}{{ range }}", "{{ s if s else 'x' }}{{ (s or e)|upper }}",
    "{% for a in l %}{% for b in l %}{% for c in l %}{% if c == 1 %}{% continue %}{% endif %}{{ a }}{{ b }}{{ c }} {% endfor %}{% endfor %}{% endfor %}",
]


def whitespace():
    """Every combination of signs at both ends of a tag, in several surroundings."""
    surroundings = ["a{}b", "a {} b", "a\n{}\nb", "a\n  {}  \n  b", "  {}\n\n", "\n\n {}{}\n", "a \t\n\n{}\n \n b", "{}", "x\u00a0{}\u2003y"]
    for before, after in itertools.product(["", "-", "+"], repeat=2):
        for around in surroundings:
            yield around.replace("{}", "{%" + before + " if t " + after + "%}" + "i{%" + before + " endif " + after + "%}")
            yield around.replace("{}", "{%" + before + " set z = 1 " + after + "%}")
            yield around.replace("{}", "{#" + before + " c " + after + "#}")
            if after != "+":
                yield around.replace("{}", "{{" + before + " i " + after + "}}")
                yield around.replace("{}", "{%" + before + " raw " + after + "%} r {%" + before + " endraw %}")
    yield "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend\n"
    yield "  {% for x in l %}\n  {%- if x == 1 %}\n  one\n  {%- else %}\n  {{ x }}\n  {%- endif %}\n  {% endfor %}\nend"
    yield "a\n\t{% if t %}\n\tb\n\t{% endif %}\n\tc"
    yield "{# c #}\n{# d #}\nx\n  {# e #}  \ny"


TOOLS = [
    {"name": "get_weather", "description": "Current weather",
     "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Stadt, z. B. Köln"},
                                                     "days": {"type": "integer", "default": 3}, "scale": {"type": "number", "default": 1.0}}, "required": ["city"]}},
    {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
]
SYSTEM = {"role": "system", "content": "You are terse."}
USER = {"role": "user", "content": "What is the weather in Köln?"}
ANSWER = {"role": "assistant", "content": "Rain."}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "abc123def", "name": "get_weather", "arguments": {"city": "Köln", "days": 2, "exact": 1.0, "flags": [True, None]}}]}
RESULT = {"role": "tool", "content": "{\"sky\": \"grey\"}", "name": "get_weather", "tool_call_id": "abc123def"}

CHATS = {
    "simple": {"messages": [USER]},
    "no prompt": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "  And tomorrow?  \n"}, {"role": "assistant", "content": "\nSun.\n"}, {"role": "user", "content": "Thanks"}]},
    "tools": {"messages": [USER], "tools": TOOLS},
    "system and tools": {"messages": [SYSTEM, USER], "tools": TOOLS},
    "tool call": {"messages": [SYSTEM, USER, CALL, RESULT], "tools": TOOLS},
    "after tool call": {"messages": [USER, CALL, RESULT, ANSWER, {"role": "user", "content": "ok"}], "tools": TOOLS},
    "unicode": {"messages": [SYSTEM, {"role": "user", "content": "你好 😀 \u200b zażółć\u00a0\n\"quotes\" {{ braces }} </s>"}]},
    "reasoning": {"messages": [USER, {"role": "assistant", "content": "Rain.", "reasoning_content": "It is Köln."}, USER]},
    "reasoning last": {"messages": [USER, {"role": "assistant", "content": "<think>\nIt is Köln.\n</think>\n\nRain."}], "add_generation_prompt": False},
    "no thinking": {"messages": [USER], "vars": {"enable_thinking": False}},
    "variables": {"messages": [SYSTEM, USER], "tools": TOOLS, "vars": {"tools_in_user_message": False, "date_string": "1 Jan 2030"}},
    "error role": {"messages": [{"role": "robot", "content": "beep"}]},
    "error order": {"messages": [USER, USER]},
    "error assistant first": {"messages": [ANSWER]},
    "error two calls": {"messages": [USER, {**CALL, "tool_calls": CALL["tool_calls"] * 2}, RESULT], "tools": TOOLS},
    "error short id": {"messages": [USER, {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "x"}]}], "tools": TOOLS},
}


def as_template_sees(chat):
    """The variables that a template gets for a chat, in the form of Hugging Face."""
    messages = []
    for message in chat["messages"]:
        seen = {key: value for key, value in message.items() if key != "tool_calls"}
        if "tool_calls" in message:
            seen["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                for call in message["tool_calls"]
            ]
        messages.append(seen)
    tools = [{"type": "function", "function": tool} for tool in chat.get("tools", [])] or None
    return {
        "messages": messages, "tools": tools, "documents": None, "add_generation_prompt": chat.get("add_generation_prompt", True),
        "bos_token": "<s>", "eos_token": "</s>", **chat.get("vars", {}),
    }


def write(name, cases):
    text = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
    (HERE / name).write_text(text)
    print(f"{name}: {len(cases)} cases, {sum('error' in case for case in cases)} of them errors")


def main():
    assert jinja2.__version__ == "3.1.6", jinja2.__version__
    templates = ["{{ " + text + " }}" for text in EXPRESSIONS] + STATEMENTS + list(whitespace()) + METHODS
    (HERE / "variables.json").write_text(json.dumps(VARS, ensure_ascii=False, indent=1) + "\n")
    cases = [run(template, VARS) for template in dict.fromkeys(templates)]
    write("expressions.jsonl", [case for case in cases if " at 0x" not in case.get("output", "")])
    families = []
    for path in sorted((HERE / "families").glob("*.jinja")):
        for name, chat in CHATS.items():
            case = run(path.read_text(), as_template_sees(chat))
            families.append({"family": path.stem, "name": name, "chat": chat, **{k: v for k, v in case.items() if k != "template"}})
    write("families.jsonl", families)


if __name__ == "__main__":
    main()
