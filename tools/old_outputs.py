"Which notebooks have outputs that are older than their code. `tools/run_nbs.py` stores with the outputs what they came from."
import hashlib, re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
NBS, LIB, KEY = ROOT/'nbs', ROOT/'closed_loop', 'outputs_of'


def digest(texts):
    "Equal for texts that differ in spaces, line breaks and semicolons alone"
    return hashlib.sha256('\0'.join(re.sub(r'[\s;]+', '', o) for o in texts).encode()).hexdigest()[:12]


def code(nb): return [c.source for c in nb.cells if c.cell_type == 'code']


def modules(nb):
    "Files of the library's modules that a notebook imports by name"
    found = sorted({m for s in code(nb) for m in re.findall(r'^\s*from closed_loop\.([\w.]+) import', s, re.M)})
    return [p for m in found if (p := LIB/f"{m.replace('.', '/')}.py").is_file()]


def source(nb): return dict(code=digest(code(nb)), modules=digest(p.read_text(encoding='utf-8') for p in modules(nb)))


def old():
    "Names of notebooks whose own code has changed since, or is unknown; and of others that import what has changed"
    own, imported = [], []
    for p in sorted(NBS.rglob('*.ipynb')):
        if any(o[0] in '._' for o in p.relative_to(NBS).parts): continue
        nb = nbformat.read(p, as_version=4)
        if not any(c.get('outputs') for c in nb.cells): continue
        was, now = nb.metadata.get(KEY, {}), source(nb)
        if was.get('code') != now['code']: own.append(str(p.relative_to(ROOT)))
        elif was.get('modules') != now['modules']: imported.append(str(p.relative_to(ROOT)))
    return own, imported


if __name__ == '__main__':
    own, imported = old()
    print('Older than their own code:', *own or ['none'], sep='\n  ')
    print('Older than a module they import:', *imported or ['none'], sep='\n  ')
