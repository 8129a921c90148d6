"Pages from processed notebooks by Sphinx, for machines without Quarto. Nothing is fetched, now or when they are read."
import base64, re, shutil
from io import StringIO
from pathlib import Path

import nbformat, yaml
from docs import page
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from readme import github_outputs, quarto_options
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
CONF = dict(
    project='closed_loop', author='closed_loop authors', html_title='closed_loop', html_theme='sphinx_book_theme', html_css_files=['styles.css'],
    extensions=['myst_nb', 'sphinx_site'], nb_execution_mode='off', nb_ipywidgets_js={}, nb_render_markdown_format='myst',
    html_math_renderer='mathml',
    myst_enable_extensions=['dollarmath', 'colon_fence', 'attrs_inline', 'attrs_block', 'html_image'], myst_update_mathjax=False,
    myst_heading_anchors=4, myst_heading_slug_func='docs.slug', html_copy_source=False, html_show_copyright=False,
    html_context=dict(default_mode='auto'), highlight_language='none',
    html_theme_options=dict(home_page_in_toc=True, use_download_button=False, use_fullscreen_button=False, show_toc_level=2,
                            navbar_persistent=[], pygments_dark_style='github-dark'),
    suppress_warnings=['mystnb.unknown_mime_type', 'myst.header'])
CALLOUT = re.compile(r'^:::+ *\{\.callout-(\w+)[^}]*\}\n(.*?)^:::+ *$', re.M | re.S)


def mathml(self, node):
    "Formulas as MathML, which browsers draw themselves"
    block = isinstance(node, nodes.math_block)
    tex = re.sub(r'\\dots\b', r'\\ldots', node.astext()) # the converter knows no \dots
    try: m = tex2mathml(tex, as_block=block)
    except MathError as e:
        logger.warning('%s in the formula %s', e, tex, location=node)
        m = tex
    self.body.append(f'<div class="formula">{m}</div>' if block else m)
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
    return dict(parallel_read_safe=True, parallel_write_safe=True)


def callout(m):
    "A callout whose heading is its title"
    title, body = re.match(r'(?:#+ +([^\n]*)\n)?(.*)', m[2].strip(), re.S).groups()
    return f':::{{admonition}} {title or m[1].capitalize()}\n:class: {m[1]}\n{body.strip()}\n:::'


def prose(src):
    "Quarto's Markdown as MyST's"
    src = CALLOUT.sub(callout, src)
    src = re.sub(r'(\]\()([\w./-]+\.ipynb)', lambda m: m[1] + page(m[2]) + '.ipynb', src)
    return re.sub(r'^(#+ .*?) *\{#([\w.-]+)\}$', r'(\2)=\n\1', src, flags=re.M)


def wide(output, most=500):
    "Is this a figure of more pixels than a telephone has?"
    png = output.get('data', {}).get('image/png')
    return bool(png) and int.from_bytes(base64.b64decode(png)[16:20], 'big') > most


def convert(nb):
    "A processed notebook's cells as MyST-NB wants them"
    for c in nb.cells:
        if c.cell_type == 'raw':
            fm = yaml.safe_load(c.source.strip().strip('-'))
            yield nbformat.v4.new_markdown_cell(f"# {fm['title']}\n\n{{.description}}\n{fm.get('description', '')}")
        elif c.cell_type == 'markdown':
            if not c.source.startswith('<!-- WARNING'): yield nbformat.v4.new_markdown_cell(prose(c.source))
        else:
            opts = quarto_options(c)
            if opts.get('include') == 'false': continue
            if opts.get('output') == 'asis':
                for o in c.outputs: yield nbformat.v4.new_markdown_cell(prose(o.data['text/markdown']))
                continue
            c.outputs = [] if opts.get('output') == 'false' else list(github_outputs(c.outputs))
            hide = opts.get('echo') == 'false' or not c.source.strip()
            if hide and not c.outputs: continue
            c.metadata = nbformat.from_dict(dict(tags=['remove-input'] if hide else []))
            image = dict(alt=opts.get('fig-alt', '').strip('"'), classes='wide' if any(map(wide, c.outputs)) else None)
            if image := {k: v for k, v in image.items() if v}: c.metadata['mystnb'] = dict(image=image)
            yield c


def toctrees(groups):
    "One cell with the site's groups"
    trees = []
    for name, nbs in groups.items():
        if pages := [page(o) for o in nbs if o != 'index.ipynb']:
            trees.append('\n'.join([f'```{{toctree}}\n:hidden:\n:caption: {name}\n', *pages, '```']))
    return nbformat.v4.new_markdown_cell('\n\n'.join(trees))


def build(src, out, groups):
    "Render the processed notebooks of folder `src` into folder `out`; what Sphinx complains about comes back"
    tmp, made, warnings = src.parent/'sphinx', src.parent/'html', StringIO()
    for p in sorted(src.rglob('*.ipynb')):
        nb, dest = nbformat.read(p, as_version=4), tmp/f'{page(p.relative_to(src))}.ipynb'
        nb.cells = list(convert(nb)) + ([toctrees(groups)] if p.name == 'index.ipynb' else [])
        nb.metadata = nbformat.from_dict(dict(language_info=dict(name='python', pygments_lexer='python')))
        dest.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nb, dest)
    shutil.copytree(src, tmp, dirs_exist_ok=True, ignore=shutil.ignore_patterns('*.ipynb', '*.yml', '*.scss'))
    conf = CONF | dict(html_static_path=[str(tmp/'styles.css')])
    Sphinx(tmp, None, made, src.parent/'doctrees', 'html', conf, status=None, warning=warnings).build()
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(made, out, ignore=shutil.ignore_patterns('_sources', '.buildinfo')) # MyST-NB also writes beside `made`
    shutil.copytree(tmp, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns('*.ipynb', '*.css'))
    (out/'.nojekyll').touch()
    return re.sub(r'\x1b\[[\d;]*m', '', warnings.getvalue()).replace(f'{tmp}/', '').strip()
