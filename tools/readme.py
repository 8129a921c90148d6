"Write README.md from nbs/index.ipynb as `nbdev_readme` does, with nbconvert in place of Quarto. Nothing is executed."
import os, posixpath, re, sys
from pathlib import Path
from textwrap import indent

import nbformat
from execnb.nbio import nb2str, read_nb
from fastcore.script import call_parse
from nbconvert import MarkdownExporter
from nbdev.config import get_config
from nbdev.processors import FilterDefaults, add_links, add_show_docs, exec_show_docs
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
FILES = 'README_files'


class ReadmeFilter(FilterDefaults):
    "nbdev's processors for the docs, less those that run code or whose links depend on what is installed"
    def base_procs(self):
        return [o for o in super().base_procs() if o not in (add_show_docs, exec_show_docs, add_links)]


def github_url(url, base):
    "`url`, relative to the folder `base`, as seen from the root"
    return url if re.match(r'[a-z][\w+.-]*:|[#/]', url) else posixpath.normpath(posixpath.join(base, url))


def github_md(src, base):
    "Markdown of a cell in folder `base` as GitHub wants it: links from the root, Quarto callouts as alerts"
    prose = re.split(r'(```.*?```|`[^`\n]*`)', src, flags=re.DOTALL)
    link = lambda m: m[1] + github_url(m[2], base)
    prose[::2] = [re.sub(r'(\]\(|\b(?:src|srcset|href)=")([^)\s"]+)', link, o) for o in prose[::2]]
    alert = lambda m: f'> [!{m[1].upper()}]\n' + indent(m[2].strip(), '> ', lambda _: True)
    return re.sub(r'^:::+ *\{\.callout-(\w+)[^}]*\}\n(.*?)^:::+ *$', alert, ''.join(prose), flags=re.M | re.S)


def quarto_options(cell):
    "Take the `#| key: value` lines off the top of a code cell"
    m = re.match(r'(?:#\|.*\n?)*', cell.source)
    cell.source = cell.source[m.end():]
    return dict(re.findall(r'^#\|\s*([\w-]+):\s*(.*?)\s*$', m[0], flags=re.M))


def github_outputs(outputs):
    "Outputs worth a place in a README: no stderr, no progress bars, no style sheets"
    for o in outputs:
        html = o.get('data', {}).get('text/html', '')
        if o.get('name') == 'stderr' or '<progress' in html: continue
        if html: o.data['text/html'] = re.sub(r'<style.*?</style>\s*', '', html, flags=re.DOTALL).strip()
        if html and not o.data['text/html']: continue
        yield o


def load(path):
    "The notebook at `path` after nbdev's processing, with its frontmatter as a title"
    nb = read_nb(path)
    ReadmeFilter()(nb)
    fm = nb.frontmatter_
    if not {'title', 'description'} <= fm.keys(): sys.exit(f'{path.name} must open with `# title` and `> one line`.')
    nb = nbformat.reads(nb2str(nb), as_version=4)
    nb.cells[0] = nbformat.v4.new_markdown_cell(f"# {fm['title']}\n\n> {fm['description']}")
    return nb


def build():
    "README.md and the figures it shows, as a dict of path to bytes"
    cfg = get_config()
    base = cfg.nbs_path.relative_to(cfg.config_path).as_posix()
    nb, cells, alts = load(cfg.nbs_path/cfg.readme_nb), [], []
    for c in nb.cells:
        if c.cell_type == 'markdown': c.source = github_md(c.source, base)
        elif c.cell_type == 'code':
            opts = quarto_options(c)
            if opts.get('include') == 'false': continue
            c.outputs = [] if opts.get('output') == 'false' else list(github_outputs(c.outputs))
            alts += [opts.get('fig-alt', 'Figure').strip('"') for o in c.outputs if 'image/png' in o.get('data', {})]
            c.metadata.magics_language = c.metadata.pop('language', 'python')
            if opts.get('echo') == 'false' or not c.source: c.metadata.transient = {'remove_source': True}
        cells.append(c)
    nb.cells = cells
    priority = ['text/markdown', 'image/svg+xml', 'image/png', 'image/jpeg', 'text/html', 'text/latex', 'text/plain']
    exporter = MarkdownExporter(config=Config(NbConvertBase={'display_data_priority': priority}))
    md, res = exporter.from_notebook_node(nb, {'output_files_dir': FILES, 'unique_key': 'index'})
    md = re.sub(r'!\[png\]\(', lambda _: f'![{alts.pop(0)}](', md) # nbconvert's own word for every figure
    md = re.sub(r'\n(?:[ \t]*\n){2,}', '\n\n', md).strip() + '\n'
    return {'README.md': md.encode(), **res.get('outputs', {})}


@call_parse
def main(check:bool=False): # Write nothing; exit 1 if README.md is out of date
    "Write README.md from nbs/index.ipynb"
    os.chdir(ROOT)
    new = build()
    old = {str(p): p.read_bytes() for p in [Path('README.md'), *Path(FILES).glob('*')] if p.exists()}
    if new == old: return
    if check: sys.exit('README.md is not what nbs/index.ipynb makes of it: run `make readme`.')
    for p in old.keys() - new.keys(): Path(p).unlink()
    for p, data in new.items():
        Path(p).parent.mkdir(exist_ok=True)
        Path(p).write_bytes(data)
