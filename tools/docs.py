"The website, in _docs: notebooks as nbdev processes them, rendered by Quarto where it can be had, else by Sphinx."
import ast, os, re, shutil, subprocess, sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import nbdev.showdoc, yaml
from execnb.nbio import mk_cell, read_nb, write_nb
from fastcore.script import call_parse
from nbdev.doclinks import nbglob
from nbdev.process import Processor
from nbdev.processors import FilterDefaults, add_links, add_show_docs
from nbdev.showdoc import showdoc_nm

ROOT = Path(__file__).resolve().parent.parent
NBS, LIB, OUT = ROOT/'nbs', ROOT/'closed_loop', ROOT/'_docs'
GROUPS = {'Start': 'index.ipynb', 'Tutorials': 'tutorials/*.ipynb 43_*.ipynb', 'The loop': '[0123]*.ipynb', 'Data': 'data/*.ipynb',
          'Reproducing the paper': 'paper/*.ipynb', 'Results': '40_*.ipynb 44_*.ipynb', 'Glossary': '41_*.ipynb 42_*.ipynb'}
EXPORTED = 'code-summary: "Exported source"' # what nbdev writes above code that is exported and shown
CODE = re.compile(r'(^```.*?^```|\[[^\]]*\]\([^)]*\))', re.M | re.S)


@cache
def definitions(path):
    "Lines of a module, and its definitions by the names that `show_doc` gives them"
    src = path.read_text(encoding='utf-8') if path.exists() else ''
    return src.splitlines(), {showdoc_nm(o): o for o in ast.parse(src).body if isinstance(o, (ast.FunctionDef, ast.ClassDef))}


def header(path, nm):
    "A definition's lines down to its docstring, with every comment; a class by its fields, or by how it is made"
    lines, found = definitions(path)
    o = found.get(nm)
    if isinstance(o, ast.ClassDef):
        fields = [b for b in o.body if isinstance(b, ast.AnnAssign)]
        head = f"class {nm}({', '.join(map(ast.unparse, o.bases))})" if o.bases else f'class {nm}'
        if fields: return '\n'.join([f'{head}:', *lines[fields[0].lineno-1:fields[-1].end_lineno]]) if len(fields) < 20 else head
        o = next((b for b in o.body if getattr(b, 'name', '') == '__init__'), None)
        if o is None: return head
    if o is None: return None
    end, manager = o.body[0], '@contextmanager\n' if any('contextmanager' in ast.unparse(d) for d in o.decorator_list) else ''
    sig = manager+dedent('\n'.join([*lines[o.lineno-1:end.lineno-1], lines[end.lineno-1][:end.col_offset]])).strip()
    return re.sub(r'^def __init__\(self,? *', f'class {nm}(', sig).rstrip(':') if o.name == '__init__' else sig


class Renderer(nbdev.showdoc.BasicMarkdownRenderer):
    "What `show_doc` shows: what the source says above the docstring, and a property as a property"
    module = None # of the notebook at work

    def __init__(self, sym, *args, **kwargs):
        super().__init__(sym, *args, **kwargs)
        sig = header(self.module, self.nm) or str(self.dm)
        if isinstance(sym, property): sig = re.sub(r'^def \w+\(.*?\)', self.nm, sig, flags=re.S).replace(':', '', 1)
        self.dm = sig.replace('`', '')

    def _repr_markdown_(self):
        src = nbdev.showdoc.NbdevLookup().code(self.fn)
        parts = [f"{'#'*self.title_level} {self.nm}".replace('__', r'\_\_'), src and f'[source]({src}){{.source target="_blank"}}',
                 f'```python\n{self.dm}\n```', self.docs]
        return '\n\n'.join(o for o in parts if o)


class in_order(Processor):
    "nbdev shows the definitions of one cell last to first, and methods that nobody calls by name"
    def begin(self):
        self.nb.cells[:] = [c for c in self.nb.cells if not (getattr(c, 'has_sd', False) and c.source.endswith('__)'))]
        cells, i = self.nb.cells, 0
        while i < len(cells):
            j = i
            while j < len(cells) and getattr(cells[j], 'has_sd', False): j += 1
            cells[i:j] = cells[i:j][::-1]
            i = max(j, i+1)


def slug(text):
    "The anchor that Quarto gives a heading"
    return re.sub(r'\s+', '-', re.sub(r'[^\w\s.-]', '', text).strip().lower()).lstrip('0123456789-.')


def page(path): return re.sub(r'(^|/)\d+\w?_', r'\1', str(path)).removesuffix('.ipynb')


@cache
def names():
    "Notebook and anchor of each name of the library that means one thing: no module, no setting, no argument"
    import closed_loop.config as config
    nbs = {page(p.relative_to(NBS)): p.relative_to(NBS) for p in nbglob(NBS, as_path=True)}
    where, other = {}, {o.name for o in fields(config.CLIConfig)} | {*config.BN_POLICIES, 'closed_loop', 'features'} # values, folders and layers
    for p in LIB.rglob('[!_]*.py'):
        mod, tree = p.relative_to(LIB).with_suffix(''), ast.parse(p.read_text(encoding='utf-8'))
        other |= {*mod.parts, *(o.arg for o in ast.walk(tree) if isinstance(o, ast.arg))}
        for o in tree.body:
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)) and o.name[0] != '_' and str(mod) in nbs:
                where.setdefault(showdoc_nm(o), []).append(nbs[str(mod)])
    return {n: (w[0], n.lower()) for n, w in where.items() if len(w) == 1 and n not in other}


class link_names(Processor):
    "Link names of the library to where they are defined, from page to page; nbdev's links leave the site"
    def link(self, m):
        nb, anchor = names().get(m[1].removesuffix('()'), (None, None))
        if nb is None: return m[0]
        here = Path(self.nb.path_).resolve().relative_to(NBS)
        return f"[{m[0]}]({'' if nb == here else os.path.relpath(nb, here.parent)}#{anchor})"

    def prose(self, text):
        parts = CODE.split(text)
        parts[::2] = [re.sub(r'`([\w.]+(?:\(\))?)`', self.link, o) for o in parts[::2]]
        return ''.join(parts)

    def cell(self, cell):
        if cell.cell_type == 'markdown': cell.source = self.prose(cell.source)
        for o in cell.get('outputs', []):
            if md := o.get('data', {}).get('text/markdown'): o['data']['text/markdown'] = self.prose(''.join(md))

    def end(self): self.nb.metadata.pop('widgets', None) # a page with their state loads scripts from the network


class tidy_outputs(Processor):
    "What is printed in pieces is one output; a table has one row of names, which also has that of its first column"
    head = re.compile(r'(<thead>\s*<tr[^>]*>\s*)<th></th>(.*?</tr>)\s*<tr>\s*<th>([^<]+)</th>\s*(?:<th></th>\s*)+</tr>', re.S)

    def cell(self, cell):
        outs = []
        for o in cell.get('outputs', []):
            if outs and o.get('name') and o.get('name') == outs[-1].get('name'):
                outs[-1]['text'] = ''.join(outs[-1]['text']) + ''.join(o['text'])
                continue
            if html := o.get('data', {}).get('text/html'):
                o['data']['text/html'] = self.head.sub(r'\1<th>\3</th>\2', ''.join(html))
            outs.append(o)
        if outs: cell.outputs = outs


class both_themes(Processor):
    "A `<picture>` follows the system, a page its own switch: both images, of which the style sheet shows one"
    def cell(self, cell):
        if cell.cell_type == 'markdown': cell.source = re.sub(r'<picture>.*?</picture>', self.images, cell.source, flags=re.S)

    def images(self, m):
        dark, img = re.search(r'dark\)" srcset="([^"]+)', m[0])[1], re.search(r'<img .*?>', m[0], re.S)[0]
        light = img.replace('<img ', '<img class="only-light" ')
        return light + '\n' + re.sub(r'src="[^"]+', f'src="{dark}', img.replace('<img ', '<img class="only-dark" '))


def by_definition(src, names):
    "The code of each definition that has a name of its own here; what stands before it goes with it"
    lines, start = src.splitlines(keepends=True), 0
    found = [(showdoc_nm(o), o.end_lineno) for o in ast.parse(src).body if hasattr(o, 'name') and showdoc_nm(o) in names]
    for i, (nm, end) in enumerate(found):
        yield nm, ''.join(lines[start:end] if i+1 < len(found) else lines[start:]).strip('\n')
        start = end


class code_once(Processor):
    "Where code is shown, each definition stands under its name, without a signature that repeats it"
    def end(self):
        named = {c.source.split('show_doc(')[1].rstrip(')'): c for c in self.nb.cells if getattr(c, 'has_sd', False)}
        shown = {id(c): list(by_definition(c.source, named)) for c in self.nb.cells if EXPORTED in c.source}
        moved, cells = {nm for parts in shown.values() for nm, _ in parts}, []
        for c in self.nb.cells:
            if not shown.get(id(c)):
                cells += [] if any(c is named[o] for o in moved) else [c]
                continue
            for nm, src in shown[id(c)]:
                data = named[nm].outputs[0]['data']
                data['text/markdown'] = ''.join(data['text/markdown']).split('```')[0].strip()
                cells += [named[nm], mk_cell(src)]
        self.nb.cells[:] = cells


class SiteFilter(FilterDefaults):
    "nbdev's processors, with ours for the order of definitions, links and pictures"
    def base_procs(self):
        procs = [link_names if o == add_links else o for o in super().base_procs()]
        procs.insert(procs.index(add_show_docs)+1, in_order)
        return [*procs, code_once, tidy_outputs, both_themes]


def process(dest):
    "Write all notebooks, processed, and the files beside them to the folder `dest`"
    os.environ.update(IN_TEST='1', MPLBACKEND='agg') # nothing is exported, no window is opened
    nbdev.showdoc.BasicMarkdownRenderer = Renderer
    for p in sorted(NBS.rglob('*')):
        rel = p.relative_to(NBS)
        if not p.is_file() or any(o[0] == '.' for o in rel.parts): continue
        (dest/rel).parent.mkdir(parents=True, exist_ok=True)
        if p.suffix != '.ipynb': shutil.copy(p, dest/rel)
        else:
            nb, Renderer.module = read_nb(p), LIB/f'{page(rel)}.py'
            SiteFilter()(nb)
            for c in nb.cells: c.pop('has_sd', None) # no key of a notebook
            write_nb(nb, dest/rel)
    (dest/'sidebar.yml').write_text(sidebar())


def groups():
    "The notebooks of each group of the site; a group without notebooks is left out"
    found = {k: [str(p.relative_to(NBS)) for o in v.split() for p in sorted(NBS.glob(o))] for k, v in GROUPS.items()}
    return {k: v for k, v in found.items() if v}


def sidebar(): # what Quarto reads
    "The groups as nbdev writes its sidebar.yml"
    contents = [dict(section=k, contents=v) for k, v in groups().items()]
    return yaml.dump(dict(website=dict(sidebar=dict(contents=contents))), sort_keys=False)


def quarto():
    "Path of Quarto; where it is missing, try the package that fetches it"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get('PATH', '')])
    if found := shutil.which('quarto', path=path): return found
    print('Quarto is not installed: trying `pip install quarto-cli`.', flush=True)
    cmd = [sys.executable, '-m', 'pip', 'install', '-q', '--retries', '0', '--timeout', '10', 'quarto-cli']
    try: subprocess.run(cmd, check=True, capture_output=True, timeout=300)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired): return None
    return shutil.which('quarto', path=path)


def by_quarto(exe, src, out):
    "Render the processed notebooks of folder `src` into folder `out`, as `nbdev_docs` does"
    subprocess.run([exe, 'render', '--no-cache'], cwd=src, check=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(src/OUT.name, out)


@call_parse
def main(out:str=str(OUT), # Folder for the pages
         sphinx:bool=False): # Do not look for Quarto
    "Build the website"
    out, exe = Path(out).resolve(), None if sphinx else quarto()
    os.chdir(ROOT)
    with TemporaryDirectory() as d:
        process(src := Path(d)/'nbs')
        if exe: by_quarto(exe, src, out)
        else:
            if not sphinx: print('Quarto cannot be had here: building the same pages with Sphinx.', flush=True)
            from sphinx_site import build
            if problems := build(src, out, groups()): sys.exit(f'The pages are in {out}, but not all is well:\n{problems}')
    print(f'Open {out}/index.html')
