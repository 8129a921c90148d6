"Run notebooks and store their outputs, skipping the cells that `nbdev_test` skips."
import argparse, os, sys
from pathlib import Path

import nbformat
from fastcore.basics import str2bool
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbdev.clean import nbdev_clean
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.frontmatter import FrontmatterProc
from nbdev.process import NBProcessor, extract_directives
from old_outputs import KEY, source

ROOT = Path(__file__).resolve().parent.parent


def skip(cell, flags):
    "Is `cell` marked with `eval: false` or one of `flags`, or does it export the library?"
    d = extract_directives(cell, remove=False)
    return d.get('eval:', [''])[0].lower() == 'false' or flags & d.keys() or 'nbdev_export(' in cell.source


def run_nb(path, flags):
    "Execute the notebook at `path` in its own folder and write it back clean; on an error leave it alone"
    fm = getattr(NBProcessor(path, procs=FrontmatterProc, process=True).nb, 'frontmatter_', {})
    if str2bool(fm.get('skip_exec', False)): return
    nb = nbformat.read(path, as_version=4)
    nb.metadata[KEY] = source(nb)
    for c in nb.cells:
        if c.cell_type == 'code' and skip(c, flags): c.metadata.tags = ['skip-execution']
    NotebookClient(nb, timeout=None, kernel_name='python3', store_widget_state=False, record_timing=False,
                   resources={'metadata': {'path': str(path.parent)}}).execute()
    for c in nb.cells: # warnings name paths of this machine
        if c.cell_type == 'code': c.outputs = [o for o in c.outputs if o.get('name') != 'stderr']
        for o in c.get('outputs', []): o.get('metadata', {}).pop('needs_background', None) # nbs/matplotlibrc sees to that
    nbformat.write(nb, path)
    nbdev_clean.__wrapped__(str(path))


def main():
    "Run the notebooks named on the command line, or all"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('nbs', nargs='*', type=Path, help='notebooks to run, all of them if none is named')
    parser.add_argument('--flags', default='', help='space separated flags of cells to run that are normally skipped')
    args = parser.parse_args()
    paths = [p.resolve() for p in args.nbs]
    os.chdir(ROOT)
    os.environ.pop('MPLBACKEND', None) # figures are drawn inline
    os.environ['MATPLOTLIBRC'] = str(ROOT/'nbs/matplotlibrc')
    skip_flags = set(get_config().tst_flags.split()) - set(args.flags.split())
    for p in paths or nbglob(as_path=True).sorted():
        print(p.name, flush=True)
        try: run_nb(p, skip_flags)
        except CellExecutionError as e: sys.exit(f'{p.name} failed and was left as it was:\n{e}')


if __name__ == '__main__': main()
