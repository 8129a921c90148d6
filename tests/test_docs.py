"The website: what nbdev makes of the notebooks, the pages Sphinx makes of that, and those pages in a browser."
import ast, base64, io, os, re, subprocess, sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from browser import CHROMIUM, browser
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NBS, TOOLS = ROOT/'nbs', ROOT/'tools'
NAMES = sorted(str(p.relative_to(NBS)) for p in NBS.rglob('*.ipynb') if not any(o[0] in '._' for o in p.relative_to(NBS).parts))
sys.path.insert(0, str(TOOLS))
import docs  # noqa: E402


def run(code, *args):
    "Run `code` in a process of its own: nbdev executes what notebooks export"
    env = {**os.environ, 'IN_TEST': '1', 'MPLBACKEND': 'agg', 'PYTHONPATH': str(TOOLS)}
    cmd = [sys.executable, '-W', 'ignore', '-c', f'import sys; from pathlib import Path; {code}', *map(str, args)]
    res = subprocess.run(cmd, cwd=ROOT, env=env, capture_output=True, text=True)
    assert res.returncode == 0, f'{res.stdout}{res.stderr}'
    return res.stdout.strip()


@pytest.fixture(scope='module')
def src(tmp_path_factory):
    d = tmp_path_factory.mktemp('site')/'nbs'
    run('import docs; docs.process(Path(sys.argv[1]))', d)
    return d


@pytest.fixture(scope='module')
def nbs(src): return {n: nbformat.read(src/n, as_version=4) for n in NAMES}


def shown(cell, kind): return [o.data[kind] for o in cell.get('outputs', []) if kind in o.get('data', {})]


def markdown(nb):
    "Markdown of a processed notebook as readers see it: cells, and what `show_doc` says"
    for c in nb.cells:
        if c.cell_type == 'markdown': yield c.source
        yield from shown(c, 'text/markdown')


def prose(md): return re.sub(r'^```.*?^```|`[^`\n]+`', '', md, flags=re.M | re.S)


def anchors(nb):
    "Where links into a processed notebook may lead"
    heads = [h for md in markdown(nb) for h in re.findall(r'^#+ +(.*)$', re.sub(r'^```.*?^```', '', md, flags=re.M | re.S), re.M)]
    return {(m[1] if (m := re.search(r'\{#([\w.-]+)\}', h)) else docs.slug(h.replace('\\', '').replace('`', ''))) for h in heads}


def test_introductions_are_not_lost():
    "nbdev keeps a title, a description and `- key: value` of a title cell, and drops the rest"
    for n in NAMES:
        cells = [c for c in nbformat.read(NBS/n, as_version=4).cells if c.cell_type == 'markdown']
        title = next(c.source for c in cells if re.search(r'^# ', c.source, re.M))
        lost = [o for o in title.splitlines() if o.strip() and not re.match(r'# |> |- \S+:', o)]
        assert not lost, f'{n}: put what follows the description in a cell of its own: {lost}'
        assert len(re.findall(r'^> ', title, re.M)) == 1, f'{n}: the title wants one line of description'


def test_every_notebook_is_in_one_group():
    listed = [o for v in docs.groups().values() for o in v]
    assert sorted(listed) == NAMES, 'tools/docs.py: each notebook belongs to one of GROUPS'
    assert len({docs.page(n) for n in NAMES}) == len(NAMES)


def test_links_and_anchors_lead_somewhere(nbs):
    bad, seen = [], 0
    for n, nb in nbs.items():
        for md in markdown(nb):
            for url in re.findall(r'\]\(([^)\s]+)', prose(md).replace('\n', ' ')) + re.findall(r'\b(?:src|srcset|href)="([^"]+)', prose(md)):
                if re.match(r'[a-z][\w+.-]*:', url): continue
                path, _, anchor = url.partition('#')
                to = os.path.normpath(os.path.join(os.path.dirname(n), path)) if path else n
                ok = (anchor in anchors(nbs[to]) if anchor else True) if to in nbs else (NBS/to).is_file()
                seen += 1
                if not ok or path.endswith('.html'): bad.append(f'{n}: {url}')
    assert seen > 100 and not bad, '\n'.join(bad)


def test_no_raw_tex_or_directive(nbs):
    bad = []
    for n, nb in nbs.items():
        for md in markdown(nb):
            text = prose(md)
            if text.count('$$') % 2: bad.append(f'{n}: a formula is left open')
            rest = re.sub(r'\$\$.*?\$\$|\$[^$\n]+\$', '', text, flags=re.S)
            bad += [f'{n}: {o}' for o in re.findall(r'\\[a-zA-Z]+|^#\|.*', rest, re.M)]
        for c in nb.cells:
            if c.cell_type == 'code':
                bad += [f'{n}: {o}' for o in re.findall(r'^#\|.*', c.source, re.M) if not re.match(r'#\| [\w-]+: \S', o)]
                body = re.sub(r'\A(?:#\|.*\n?)*', '', c.source)
                bad += [f'{n}: {o}' for o in re.findall(r'^\s*#\|.*', body, re.M)]
    assert not bad, '\n'.join(bad)


def test_prose_announces_nothing_hidden(nbs):
    "What ends with a colon is followed by something to see"
    for n, nb in nbs.items():
        for c, after in zip(nb.cells, [*nb.cells[1:], None]):
            if c.cell_type == 'markdown' and re.search(r'\w.*:\s*\Z', c.source.splitlines()[-1] if c.source else ''):
                assert after is not None and after.cell_type == 'code', f'{n}: {c.source[-80:]!r} is followed by nothing a reader sees'


def test_figures_have_alt_text(nbs):
    bad, seen = [], 0
    for n, nb in nbs.items():
        for c in nb.cells:
            figures = [k for o in c.get('outputs', []) for k in o.get('data', {}) if k.startswith('image/')]
            seen += len(figures)
            if figures and not re.search(r'^#\| fig-alt: "?\w', c.source, re.M):
                bad.append(f'{n}: {c.source.splitlines()[0]} wants `#| fig-alt:`')
            html = ''.join(shown(c, 'text/html')) + (c.source if c.cell_type == 'markdown' else '')
            bad += [f'{n}: {o[:60]}' for o in re.findall(r'<img\b[^>]*>', html) if not re.search(r'alt="\w', o)]
            if c.cell_type == 'markdown': bad += [f'{n}: {o}' for o in re.findall(r'!\[\s*\]\([^)]*\)', c.source)]
    assert seen and not bad, '\n'.join(bad)


# notebooks whose lines of code are not wrapped yet
MAX_SHOWN = 90 # characters, which a page shows without a scroll bar


def code_shown(nb):
    "Lines of code of a processed notebook that readers see"
    for c in nb.cells:
        if c.cell_type == 'code' and not re.search(r'^#\| *(echo|include): *false', c.source, re.M):
            yield from (o for o in c.source.splitlines() if not o.startswith('#|'))


def test_code_fits_the_page(nbs):
    "What is exported is shown as a signature, which nbdev wraps"
    shown = {n.removesuffix('.ipynb'): list(code_shown(nb)) for n, nb in nbs.items()}
    assert sum(map(len, shown.values())) > 1000
    bad = [f'{n}: {len(o)} characters in {o.strip()[:70]!r}' for n, lines in shown.items() for o in lines if len(o) > MAX_SHOWN]
    assert not bad, '\n'.join(bad)


def test_signatures_are_code(nbs):
    "No Markdown in them; properties without parentheses; definitions in the order of the source"
    said = {n: [md for c in nb.cells if 'show_doc(' in c.source for md in shown(c, 'text/markdown')] for n, nb in nbs.items()}
    sigs = [m[1] for mds in said.values() for md in mds if (m := re.search(r'```python\n(.*?)```', md, re.S))]
    assert len(sigs) > 100 and not [s for s in sigs if '`' in s or '](' in s]
    res = next(v for k, v in said.items() if k.endswith('_result.ipynb'))
    preds = next(md for md in res if md.startswith('### CLIResult.preds\n'))
    assert '```python\nCLIResult.preds->Tensor' in preds and 'def preds' not in preds
    assert any('```python\nclass CLIResult:\n    first:Tensor           # (N, C) first-look logits\n' in md for md in res)
    core = [md for c in nbs['00_core.ipynb'].cells if 'show_doc(' in c.source for md in shown(c, 'text/markdown')]
    assert any('    **kwargs, # how data is opened (see open_problem' in md and ')->CLIResult:\n' in md for md in core)
    for n, mds in said.items():
        src = '\n'.join(c.source for c in nbformat.read(NBS/n, as_version=4).cells if re.match(r'(#\|.*\n)*#\| exports?\b', c.source))
        src = re.sub(r'^[%!].*', '', src, flags=re.M)
        order = [o.name for o in ast.parse(src).body if isinstance(o, (ast.FunctionDef, ast.ClassDef)) and not re.match('_[^_]', o.name)]
        heads = [re.match(r'#+ (.*)', md)[1].split('.')[-1].replace('\\', '') for md in mds]
        assert heads == [o for o in order if o in heads], n


def test_code_is_shown_once(nbs):
    "Where readers see the lines of a definition they see its name above them, and no signature"
    cells = nbs['13_decide.ipynb'].cells
    at = {c.source.split('show_doc(')[1][:-1]: i for i, c in enumerate(cells) if 'show_doc(' in c.source}
    for nm in ('paper', 'decide', 'finite_or_first', 'conditional'):
        md, code = ''.join(shown(cells[at[nm]], 'text/markdown')), cells[at[nm]+1].source
        assert md.startswith(f'### {nm}\n') and '```' not in md and f'def {nm}(' in code, nm
    assert 'def finite_or_first' not in cells[at['decide']+1].source
    rest = [md for c in nbs['26_result.ipynb'].cells if 'show_doc(' in c.source for md in shown(c, 'text/markdown')]
    assert rest and all('```python' in md for md in rest) # lines that are not shown have a signature


def test_by_definition_by_hand():
    src = '#| a: b\n_k = 1\n@f\ndef g(): pass\n\n_h = 2\nclass C: pass\nlast = 3'
    assert dict(docs.by_definition(src, {'g', 'C'})) == {'g': '#| a: b\n_k = 1\n@f\ndef g(): pass', 'C': '_h = 2\nclass C: pass\nlast = 3'}
    assert not dict(docs.by_definition(src, {}))


def test_arguments_of_other_libraries_are_not_listed(nbs):
    "A callback that is made as fastai's are: their page has the two dozen arguments"
    said = [md for c in nbs['09_adapt.ipynb'].cells if 'show_doc(' in c.source for md in shown(c, 'text/markdown')]
    assert any('class TrainOnly(Callback)\n```' in md for md in said) and not any('after_cancel_step' in md for md in said)


def test_figures_are_seen_on_light_and_on_dark(nbs):
    "No background of their own: `tools/run_nbs.py` draws with nbs/matplotlibrc"
    bad, seen = [], 0
    for n, nb in nbs.items():
        for c in nb.cells:
            for png in shown(c, 'image/png'):
                im, seen = Image.open(io.BytesIO(base64.b64decode(png))).convert('RGBA'), seen+1
                if im.getpixel((0, 0))[3]: bad.append(f'{n}: {c.source.splitlines()[0][:80]}')
    assert seen > 20 and not bad, '\n'.join(bad)


def test_no_markdown_in_plain_output(nbs):
    for n, nb in nbs.items():
        for c in nb.cells:
            for o in c.get('outputs', []):
                text = o.get('text', '') + ''.join(v for k, v in o.get('data', {}).items() if k in ('text/html', 'text/plain'))
                assert not re.search(r'(?<![\w*])\*{1,2}[-+]?\d[\d.,]*%?\*{1,2}(?![\w*])', text), f'{n}: {c.source[:60]}'


def test_settings_are_shown(nbs):
    from closed_loop.config import CLIConfig
    tables = [t for c in nbs['01_config.ipynb'].cells for t in shown(c, 'text/html')]
    table = next(t for t in tables if 'meaning' in t and 'thorough' in t)
    heads = re.findall(r'<th[^>]*>([^<]*)</th>', table)
    assert {'meaning', 'paper', 'default', 'thorough'} <= set(heads)
    missing = [f.name for f in fields(CLIConfig) if f.name not in heads]
    assert not missing, f'settings that the table in 01_config does not show: {missing}'


def test_names_that_mean_two_things_are_not_linked():
    "A setting, a module, an argument and a function may share a name"
    names = docs.names()
    assert 'cli_predict' in names and 'CLIResult' in names and 'glyphs' not in names
    assert not {'supcon', 'paper', 'layers', 'criterion', 'plan', 'rule', 'features', 'freeze', 'closed_loop'} & names.keys()


def test_quarto_gets_the_same_pages(src, tmp_path):
    "With a stand-in for Quarto, which is called where the processed notebooks are"
    fake = tmp_path/'quarto'
    fake.write_text('#!/bin/sh\nset -e\ntest "$1 $2" = "render --no-cache"\ncat _quarto.yml nbdev.yml styles.css offline.scss\n'
                    'mkdir _docs; cp sidebar.yml _docs/index.html\n')
    fake.chmod(0o755)
    docs.by_quarto(str(fake), src, tmp_path/'out')
    assert 'section: The loop' in (tmp_path/'out/index.html').read_text()


def test_quarto_that_cannot_be_had_is_no_error(monkeypatch, capsys):
    def no_network(cmd, **kwargs): raise subprocess.CalledProcessError(1, cmd)
    monkeypatch.setattr(docs.shutil, 'which', lambda *args, **kwargs: None)
    monkeypatch.setattr(docs.subprocess, 'run', no_network)
    assert docs.quarto() is None and 'quarto-cli' in capsys.readouterr().out


@pytest.fixture(scope='module')
def site(src):
    pytest.importorskip('sphinx_book_theme', reason="Sphinx's packages are not installed: pip install -e '.[dev]'")
    pytest.importorskip('myst_nb')
    out = src.parent/'out'
    code = 'import docs, sphinx_site; print(sphinx_site.build(Path(sys.argv[1]), Path(sys.argv[2]), docs.groups()))'
    return out, run(code, src, out)


def test_outputs_are_tidied_by_hand():
    from types import SimpleNamespace
    class Cell(SimpleNamespace):
        def get(self, k, default=None): return getattr(self, k, default)
    def stream(text, name='stdout'): return dict(output_type='stream', name=name, text=text)
    table = '<thead>\n<tr style="a">\n<th></th>\n<th>x</th>\n</tr>\n<tr>\n<th>way</th>\n<th></th>\n</tr>\n</thead>'
    c = Cell(outputs=[stream(['a\n']), stream('b\n'), stream('c', 'stderr'), dict(data={'text/html': table})])
    docs.tidy_outputs.cell(docs.tidy_outputs, c)
    assert [o.get('text') for o in c.outputs] == ['a\nb\n', 'c', None]
    assert re.findall(r'<th>(.*?)</th>', c.outputs[2]['data']['text/html']) == ['way', 'x']


def test_callouts_have_their_titles():
    import sphinx_site
    got = sphinx_site.prose('::: {.callout-note}\n## Limits\n\nOne line:\nand another.\n:::\n')
    assert got.strip() == ':::{admonition} Limits\n:class: note\nOne line:\nand another.\n:::'
    assert sphinx_site.prose('::: {.callout-tip}\nOnly text.\n:::\n').strip() == ':::{admonition} Tip\n:class: tip\nOnly text.\n:::'


def test_sphinx_complains_about_nothing(site): assert not site[1], site[1]


class Html(HTMLParser):
    "What an HTML page points to, what it can be pointed at, and its text outside code"
    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.ids, self.noalt, self.text, self.skip = [], [], set(), [], [], 0
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if 'id' in a: self.ids.add(a['id'])
        if tag == 'a' and a.get('href'): self.links.append(a['href'])
        elif tag in ('script', 'img', 'source', 'iframe', 'link') and (url := a.get('src') or a.get('href')): self.loads.append(url)
        if tag == 'img' and not a.get('alt'): self.noalt.append(a.get('src'))
        if tag in ('script', 'style', 'pre', 'code', 'math'): self.skip += 1

    def handle_endtag(self, tag):
        if tag in ('script', 'style', 'pre', 'code', 'math'): self.skip -= 1

    def handle_data(self, data):
        if not self.skip: self.text.append(data)


RAW = re.compile(r'\$[^$\s][^$]*\$|\\(?!n)[a-zA-Z]{2,}|#\|.*|:::.*|\{#.*?\}|\|-+\||\*\*\S') # TeX, directives, Markdown


def test_pages_are_whole(site):
    site = site[0]
    pages = {p: Html(p) for p in sorted(site.rglob('*.html')) if '_static' not in p.parts}
    assert {str(p.relative_to(site)) for p in pages} >= {f'{docs.page(n)}.html' for n in NAMES}
    bad = []
    for p, h in pages.items():
        bad += [f'{p.name} loads {o}' for o in h.loads if re.match('(https?:)?//', o)]
        for url in h.links + h.loads:
            u = urlsplit(url)
            if u.scheme or u.netloc: continue
            to = (p.parent/unquote(u.path)).resolve() if u.path else p
            dead = not to.is_file() or u.fragment and to in pages and unquote(u.fragment) not in pages[to].ids
            if dead: bad.append(f'{p.name}: {url}')
        bad += [f'{p.name}: no alt text for {o}' for o in h.noalt]
        bad += [f'{p.name}: {o}' for o in RAW.findall(''.join(h.text))]
    fetched = re.compile(r'url\(.?https?:[^)]*|@import[^;]*//[^;]*')
    bad += [f'{p.name} imports {o}' for p in site.rglob('*.css') for o in fetched.findall(p.read_text())]
    assert not bad, '\n'.join(bad[:30])


LOOK = """({broken: [...document.images].filter(o => o.complete && !o.naturalWidth).map(o => o.src),
  wide: document.documentElement.scrollWidth, math: [...document.querySelectorAll('merror')].length})"""


@pytest.mark.skipif(not CHROMIUM, reason='Chromium is not installed (on Debian: apt install chromium)')
def test_pages_in_a_browser(site, tmp_path):
    "Every page, as narrow as a phone: no console error, nothing fetched, no missing image, nothing wider than the screen"
    bad, site = [], site[0]
    with browser(tmp_path) as tab:
        tab.size(400)
        for p in sorted(site.rglob('*.html')):
            if '_static' in p.parts: continue
            bad += [f'{p.name}: {o}' for o in tab.open(p.as_uri())]
            seen = tab.eval(LOOK)
            if seen['broken'] or seen['math'] or seen['wide'] > 400: bad.append(f'{p.name}: {seen}')
        tab.open(f'{(site/"search.html").as_uri()}?q=supcon')
        tab.eval('new Promise(r => setTimeout(r, 1500))')
        assert tab.eval("document.querySelectorAll('#search-results li').length") > 0, 'the search finds nothing'
    assert not bad, '\n'.join(bad)
