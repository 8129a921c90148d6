"Fail if notebooks, modules, README.md or nbdev's other generated files are out of step, and bring them in step."
import hashlib, os, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# Cleaning first: it gives new cells the ids that exported modules mention.
STEPS = [[BIN/'nbdev_clean'], [BIN/'nbdev_export'], [sys.executable, 'tools/readme.py'],
         [sys.executable, '-c', 'from nbdev.quarto import refresh_quarto_yml; refresh_quarto_yml()']]
SKIP = {'__pycache__', '.ipynb_checkpoints', 'sidebar.yml'}


def snapshot():
    "Hash of every file the steps may write"
    files = [p for d in ('nbs', 'closed_loop', 'README_files') for p in Path(d).rglob('*')]
    files += [Path(o) for o in ('README.md', 'pyproject.toml', 'settings.ini')]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in files if p.is_file() and not SKIP.intersection(p.parts)}


def main():
    os.chdir(ROOT)
    before = snapshot()
    for cmd in STEPS: subprocess.run(cmd, check=True)
    after = snapshot()
    diff = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if diff: sys.exit(f"Out of step until now, review and commit: {', '.join(diff)}")
    print('Notebooks, modules and README.md are in step.')


if __name__ == '__main__': main()
