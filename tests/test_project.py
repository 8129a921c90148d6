"The project's own house rules: what is generated is in step, and what is written keeps the style."
import ast, configparser, os, re, runpy, shutil, subprocess, sys, warnings
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tools'))
import old_outputs  # noqa: E402

LIB, NBS = ROOT/'closed_loop', ROOT/'nbs'
MODULES = sorted(p for p in LIB.rglob('*.py') if not p.name.startswith('_'))
MAX_LINES, MAX_WIDTH, MAX_MODULE, MAX_PUBLIC = 40, 120, 300, 14
# Data flows down this list: a module imports only from rooms above it, or from neighbours in its folder.
ROOMS = """config look workers confidence plan layers outputs supcon adapt loaders auxset keep data decide inputs sanity
shift probes safely frozen run checkpoint generalist schedule cluster fates result report explore estimate pilot terminal core paper commands""".split()


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
    links = re.findall(r'(?:\]\(|\b(?:src|srcset|href)=")([^)\s"#]+)', prose)
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


def test_outputs_are_those_of_the_code():
    "Of a notebook's own cells; what it imports may have changed without changing them, so of that there is a warning only"
    own, imported = old_outputs.old()
    if imported: warnings.warn(f"outputs may be older than what they import: make nbs NB='{' '.join(imported)}'")
    assert not own, f"outputs are older than the code: make nbs NB='{' '.join(own)}'"


def test_old_outputs_are_seen(tmp_path, monkeypatch):
    "And nbdev_clean leaves the mark that says what they came from"
    from nbdev.clean import clean_nb
    monkeypatch.setattr(old_outputs, 'ROOT', tmp_path)
    monkeypatch.setattr(old_outputs, 'NBS', tmp_path/'nbs')
    monkeypatch.setattr(old_outputs, 'LIB', tmp_path/'lib')
    for d in ('nbs', 'lib'): (tmp_path/d).mkdir()
    def module(text): (tmp_path/'lib/mod.py').write_text(text)
    def old(src, out=('3',), mark=None):
        cell = nbformat.v4.new_code_cell(src, outputs=[nbformat.v4.new_output('stream', text=o) for o in out])
        nb = nbformat.v4.new_notebook(cells=[cell], metadata={} if mark is None else {old_outputs.KEY: mark, 'other': 1})
        clean_nb(nb, allowed_metadata_keys=settings()['allowed_metadata_keys'].split())
        nbformat.write(nb, tmp_path/'nbs/a.ipynb')
        return old_outputs.old(), old_outputs.source(nb)
    src = 'from closed_loop.mod import f\nf(1); f(2)'
    module('def f(x): print(x)')
    (found, other), mark = old(src)
    assert found == ['nbs/a.ipynb'] and not other   # nobody knows
    assert old(src, mark=mark)[0] == old(src.replace('; ', '\n'), mark=mark)[0] == ([], [])
    assert old(src+'+1', mark=mark)[0] == (['nbs/a.ipynb'], []) and old(src+'+1', (), mark)[0] == ([], [])
    module('def f(x): print(-x)')
    assert old(src, mark=mark)[0] == ([], ['nbs/a.ipynb'])


def test_version_is_one():
    assert runpy.run_path(str(LIB/'__init__.py'))['__version__'] == settings()['version']
    assert f"## {settings()['version']}" in (ROOT/'CHANGELOG.md').read_text(encoding='utf-8')


def test_exported_cells_are_short():
    cells = list(exported())
    assert cells
    long = [f'{nb}: {s.splitlines()[-1].strip()!r} ends a cell of {len(s.splitlines())} lines'
            for nb, s, _ in cells if len(s.splitlines()) > MAX_LINES]
    assert not long, '\n'.join(long)


def room(path): return path.relative_to(LIB).with_suffix('').parts[0]


def imports(path):
    "Rooms that a module imports from, at its top or inside functions"
    here = ('closed_loop', *path.relative_to(LIB).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): mods = [o.name for o in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join([*here[:len(here)-node.level+1], *([node.module] if node.module else [])]) if node.level else node.module
            mods = [f'{base}.{o.name}' for o in node.names] if base == 'closed_loop' else [base]
        else: continue
        yield from (m.split('.')[1] for m in mods if m.startswith('closed_loop.') and m != 'closed_loop.__version__')


def test_data_flows_one_way():
    assert {room(p) for p in MODULES} == set(ROOMS)
    bad = [f'{p.relative_to(LIB)} imports {r}' for p in MODULES for r in imports(p)
           if r not in ROOMS or ROOMS.index(r) > ROOMS.index(room(p)) or r == room(p) and p.parent == LIB]
    assert not bad, '\n'.join(bad)


def test_every_room_is_on_the_map():
    house = (ROOT/'CONTRIBUTING.md').read_text(encoding='utf-8').split('## The house')[1].split('\n## ')[0]
    inside = [p.stem for d in ('data', 'paper') for p in sorted((LIB/d).glob('[!_]*.py'))]
    missing = [r for r in [r for r in ROOMS if r not in ('data', 'paper')] + inside if f'`{r}`' not in house] + [d for d in ('data', 'paper') if f'`{d}/`' not in house]
    assert not missing, f'CONTRIBUTING.md does not say what these are for: {missing}'


def test_neighbours_import_one_way():
    "In a folder too: the order of the notebooks' numbers"
    for folder in ('data', 'paper'):
        order = [p.stem.split('_', 1)[1] for p in sorted((NBS/folder).glob('*.ipynb'))]
        for p in sorted((LIB/folder).glob('[!_]*.py')):
            nexts = re.findall(r'^\s*from \.(\w+) import', p.read_text(encoding='utf-8'), re.M)
            later = [n for n in nexts if order.index(n) >= order.index(p.stem)]
            assert not later, f'{folder}/{p.name} imports {later}, which come after it'


def test_notebooks_are_numbered_like_the_rooms():
    top = [p.stem.split('_', 1) for p in sorted(NBS.glob('[0-3]*.ipynb'))]
    assert [n for n, _ in top] == [f'{i:02}' for i in range(len(top))]
    assert [r for _, r in top] == ['core'] + [r for r in ROOMS if r not in ('core', 'data', 'paper')]


def test_modules_are_small_and_readable():
    bad = []
    for p in MODULES:
        text = p.read_text(encoding='utf-8')
        public = re.search(r'__all__ = \[(.*?)\]', text, re.S)
        code = text[public.end():].splitlines() if public else text.splitlines()
        n = len(re.findall(r"'", public[1]))//2 if public else 0
        most = 150 if p.name == 'core.py' else MAX_MODULE
        if len(text.splitlines()) > most: bad.append(f'{p.name} has {len(text.splitlines())} lines, {most} at most')
        if n > MAX_PUBLIC: bad.append(f'{p.name} has {n} public names, {MAX_PUBLIC} at most')
        bad += [f'{p.name}: {len(l)} characters in {l.strip()[:60]!r}' for l in code if len(l) > MAX_WIDTH]
    assert not bad, '\n'.join(bad)


def test_links_between_notebooks_lead_somewhere():
    bad = []
    for p in sorted(NBS.rglob('*.ipynb')):
        if any(o[0] in '._' for o in p.relative_to(NBS).parts): continue
        text = '\n'.join(c.source for c in nbformat.read(p, as_version=4).cells if c.cell_type == 'markdown')
        for link in re.findall(r'\]\(([^)\s#]+)', text):
            if not re.match(r'[a-z][\w+.-]*:', link) and not (p.parent/link).exists(): bad.append(f'{p.name}: {link}')
    assert not bad, '\n'.join(bad)


def test_contributing_examples_run(tmp_path):
    "Each worked example of CONTRIBUTING.md, at most ten lines, as it stands in the text, and then used by its name"
    blocks = re.findall(r'```python\n(.*?)```', (ROOT/'CONTRIBUTING.md').read_text(encoding='utf-8'), re.S)
    assert len(blocks) == 5 and all(len(b.strip().splitlines()) <= 10 for b in blocks)
    import torch
    from closed_loop.config import CHOICES
    from closed_loop.core import cli_predict
    from closed_loop.data.glyphs import glyphs
    from closed_loop.paper.experiments import run_experiment
    from closed_loop.paper.bench import glyph_bench
    from closed_loop.paper.lab import Lab
    from closed_loop.paper.networks import network
    before = {k: set(v) for k, v in CHOICES.items()}
    for b in blocks: exec(compile(b, 'CONTRIBUTING.md', 'exec'), {})
    new = {k: set(v)-before[k] for k, v in CHOICES.items() if set(v)-before[k]}
    try:
        assert new == dict(rule={'surest'}, planner={'one_task'}, criterion={'gap'}, network={'tiny_net'}, experiment={'caution'})
        torch.manual_seed(0)
        net, some = network('tiny_net', 4), 'ABCD'
        data = [torch.utils.data.TensorDataset(x.expand(-1, 3, -1, -1), y) for x, y in (glyphs(8, s, classes=some).tensors() for s in ('train', 'test'))]
        res = cli_predict(net, *data, preset='paper', eps=1., K=2, rule='surest', planner='one_task', criterion='gap', epochs=1, device='cpu', progress=False)
        assert len(res.plan) == 1 and res.plan.planner == 'one_task' and len(res.hard) == 32
        assert torch.allclose(res.probs.amax(1), torch.maximum(res.first.softmax(1).amax(1), res.second.softmax(1).amax(1)))
        assert list(run_experiment('caution', Lab(glyph_bench('smoke', n_test=160), tmp_path, device='cpu')).caution) == [1., 1.5]
    finally:
        for k, names in new.items():
            for n in names: del CHOICES[k][n]


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


@pytest.mark.parametrize('target', ['demo', 'test', 'test-gpu', 'install', 'readme', 'docs', 'nbs', 'clean'])
def test_makefile_has(target):
    assert re.search(rf'^{target}:', (ROOT/'Makefile').read_text(), re.M)
