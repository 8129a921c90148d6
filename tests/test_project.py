"The project's own house rules: what is generated is in step, and what is written keeps the style."
import ast, configparser, os, re, runpy, shutil, subprocess, sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
LIB, NBS = ROOT/'closed_loop', ROOT/'nbs'
MODULES = sorted(p for p in LIB.rglob('*.py') if not p.name.startswith('_'))
MAX_LINES = 40


def settings():
    cfg = configparser.ConfigParser(delimiters=['='])
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    return cfg['DEFAULT']


def tracked():
    "Text files that are, or are about to be, under version control"
    if not shutil.which('git'): pytest.skip('git is not installed')
    cmd = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    res = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True)
    if res.returncode: pytest.skip('not a git repository')
    for p in (ROOT/o for o in res.stdout.split('\0') if o):
        if not p.is_file() or p.is_symlink(): continue
        try: yield p.relative_to(ROOT), p.read_text(encoding='utf-8')
        except UnicodeDecodeError: pass


def exported():
    "Notebook name, source and syntax tree of every exported cell"
    for p in sorted(NBS.rglob('*.ipynb')):
        if any(o[0] in '._' for o in p.relative_to(NBS).parts): continue
        for c in nbformat.read(p, as_version=4).cells:
            if c.cell_type == 'code' and re.match(r'(?:#\|.*\n)*#\|\s*exports?\b', c.source):
                yield p.name, c.source, ast.parse(c.source)


def public_defs():
    "Notebook name, cell lines and node of every exported public function and class"
    for nb, src, tree in exported():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name[0] != '_':
                yield nb, src.splitlines(), node


def undocumented(lines, node):
    "Names of the arguments of function `node` with neither an annotation nor a comment, which is for the last on its line"
    a = node.args
    args = [o for o in a.posonlyargs + a.args + a.kwonlyargs if o.arg not in ('self', 'cls')]
    last = {o.lineno: o for o in args}
    commented = [o for i, o in last.items() if '#' in lines[i-1][o.end_col_offset:]]
    return [o.arg for o in args if o.annotation is None and o not in commented]


def names(tree): return {o.name for o in tree.body if isinstance(o, (ast.FunctionDef, ast.ClassDef))}


def test_readme_agrees_with_index():
    res = subprocess.run([sys.executable, 'tools/readme.py', '--check'], cwd=ROOT, capture_output=True, text=True)
    assert res.returncode == 0, res.stderr


def test_readme_reads_on_github():
    text = (ROOT/'README.md').read_text(encoding='utf-8')
    prose = re.sub(r'```.*?```', '', text, flags=re.DOTALL)
    assert not re.findall(r'^:::|\{\{<|^#\|', prose, flags=re.M), 'Quarto markup left in README.md'
    links = re.findall(r'(?:\]\(|\b(?:src|href)=")([^)\s"#]+)', prose)
    missing = [o for o in links if not re.match(r'[a-z][\w+.-]*:', o) and not (ROOT/o).exists()]
    assert not missing, f'README.md links to nothing at {missing}'


def test_every_module_has_its_notebook():
    assert MODULES
    for p in MODULES:
        m = re.search(r'File to edit: (\S+\.ipynb)', p.read_text(encoding='utf-8'))
        assert m, f'{p.name} was not exported from a notebook'
        nb = (p.parent/m[1]).resolve()
        assert nb.exists(), f'{p.name} says it comes from {m[1]}, which does not exist'
        exp = '.'.join(p.relative_to(LIB).with_suffix('').parts)
        srcs = [c.source for c in nbformat.read(nb, as_version=4).cells]
        assert any(re.search(rf'^#\|\s*default_exp {re.escape(exp)}\s*$', s, re.M) for s in srcs), f'{nb.name} does not export {exp}'


def test_modidx_is_in_step():
    syms = runpy.run_path(str(LIB/'_modidx.py'))['d']['syms']
    mods = {'.'.join(p.relative_to(ROOT).with_suffix('').parts): p for p in MODULES}
    assert syms.keys() == mods.keys()
    for mod, p in mods.items():
        tops = {o[len(mod)+1:].split('.')[-1] for o in syms[mod]}
        assert names(ast.parse(p.read_text(encoding='utf-8'))) <= tops, f'{p.name} has names unknown to _modidx.py'


def test_commands_exist():
    for o in settings()['console_scripts'].split():
        mod, func = o.split('=')[1].split(':')
        path = (ROOT/mod.replace('.', '/')).with_suffix('.py')
        assert path.exists() and func in names(ast.parse(path.read_text(encoding='utf-8'))), f'{o} points to nothing'


def test_quarto_yml_is_a_symlink():
    assert os.readlink(NBS/'_quarto.yml') == '../_quarto.yml'
    assert (ROOT/'_quarto.yml').is_file()


def test_only_dev_requirements_are_capped():
    cfg = settings()
    capped = [o for o in cfg['requirements'].split() if re.search(r'<|==|~=', o)]
    assert not capped, f'runtime requirements must stay wide: {capped}'
    dev = cfg['dev_requirements'].split()
    for o in ('nbdev', 'execnb', 'ghapi', 'fastcore'):
        assert any(re.match(rf'{o}\b.*<', d) for d in dev), f'nbdev 2 needs {o} capped in dev_requirements'


def test_notebooks_become_docs():
    "What `nbdev_docs` does before it calls Quarto: it runs exported cells and every cell with an import, and no others"
    code = """
import nbdev.processors as p
from execnb.nbio import read_nb
from nbdev.doclinks import nbglob
bad = 0
for f in nbglob(as_path=True).sorted():
    try: p.FilterDefaults()(read_nb(f))
    except Exception as e:
        bad += 1
        print(f.name, e, f'{type(e.__cause__).__name__}: {e.__cause__}')
raise SystemExit(bad)
"""
    env = {**os.environ, 'IN_TEST': '1', 'MPLBACKEND': 'agg'}
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert res.returncode == 0, f'imports want a cell of their own:\n{res.stdout}{res.stderr}'


def test_version_is_one():
    assert runpy.run_path(str(LIB/'__init__.py'))['__version__'] == settings()['version']
    assert f"## {settings()['version']}" in (ROOT/'CHANGELOG.md').read_text(encoding='utf-8')


def test_exported_cells_are_short():
    cells = list(exported())
    assert cells
    long = [f'{nb}: {s.splitlines()[-1].strip()!r} ends a cell of {len(s.splitlines())} lines'
            for nb, s, _ in cells if len(s.splitlines()) > MAX_LINES]
    assert not long, '\n'.join(long)


def test_exported_names_are_documented():
    bad = []
    for nb, lines, node in public_defs():
        doc = ast.get_docstring(node)
        if not doc: bad.append(f'{nb}: {node.name} has no docstring')
        elif '\n' in doc: bad.append(f'{nb}: {node.name} has a docstring of several lines')
        if not isinstance(node, ast.ClassDef) and (args := undocumented(lines, node)):
            bad.append(f"{nb}: {node.name} says nothing of {', '.join(args)}")
    assert not bad, '\n'.join(bad)


def test_undocumented_sees_both_kinds():
    src = 'def f(self, a, b:int, c=1, # third\n      *, d=2,\n      e=3): # fifth\n    pass'
    assert undocumented(src.splitlines(), ast.parse(src).body[0]) == ['a', 'd']


@pytest.mark.parametrize('what,pattern', [
    ('a path of one machine', r'(?<![\w.~])/(?:work|root|farm|opt|home/\w+|Users/\w+)/'),
    ('a package registry', r'pypi\.|pythonhosted\.|anaconda\.org|index-url|trusted-host|https?://\d+\.\d+\.\d+'),
], ids=['path', 'registry'])
def test_files_speak_of_no(what, pattern):
    hits = [f'{p}: {m[0]}' for p, text in tracked() if p.name != Path(__file__).name for m in re.finditer(pattern, text)]
    assert not hits, f'{what} is named in\n' + '\n'.join(hits)


def test_ci_runs_make_test():
    run = ROOT/'.ci/run'
    assert os.access(run, os.X_OK)
    assert re.search(r'^make test$', run.read_text(), re.M)


@pytest.mark.parametrize('target', ['demo', 'test', 'install', 'readme', 'docs', 'nbs', 'clean'])
def test_makefile_has(target):
    assert re.search(rf'^{target}:', (ROOT/'Makefile').read_text(), re.M)
