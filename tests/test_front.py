"The front page: its picture, and the ten lines it shows."
import json, re, sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tools'))
import docs, idea  # noqa: E402, E401

NAMES = ('idea-light.svg', 'idea-dark.svg')
README = (ROOT/'README.md').read_text(encoding='utf-8')


def front():
    "Prose of the notebook that the front page is made of"
    cells = nbformat.read(ROOT/'nbs/index.ipynb', as_version=4).cells
    return '\n'.join(c.source for c in cells if c.cell_type == 'markdown')


@pytest.mark.parametrize('name', NAMES)
def test_the_picture_is_what_the_script_draws(name):
    assert (idea.OUT/name).read_text(encoding='utf-8') == idea.build()[name], 'run `python tools/idea.py`'
    assert (idea.OUT/name).stat().st_size < 100_000


@pytest.mark.parametrize('name', NAMES)
def test_the_picture_stands_alone(name):
    "Parsed as XML: a title, a description, and nothing that is fetched or embedded"
    root = ElementTree.parse(idea.OUT/name).getroot()
    tags = {o.tag.split('}')[1] for o in root.iter()}
    assert tags <= {'svg', 'title', 'desc', 'defs', 'symbol', 'g', 'path', 'rect', 'use', 'text', 'tspan'}
    ns = {'s': 'http://www.w3.org/2000/svg'}
    assert root.find('s:title', ns).text and root.find('s:desc', ns).text == idea.ALT
    ids = {f"#{o.get('id')}" for o in root.iter() if o.get('id')}
    used = [v for o in root.iter() for k, v in o.attrib.items() if k.endswith('href')]
    fetched = re.search(r'url\(|https?:(?!//www\.w3\.org/2000/svg)', (idea.OUT/name).read_text(encoding='utf-8'))
    assert used and set(used) <= ids and not fetched
    texts = ' '.join(''.join(o.itertext()) for o in root.iterfind('.//s:text', ns))
    assert min(float(o.get('font-size')) for o in root.iterfind('.//s:text', ns)) >= 21, 'too small at 400 pixels'
    assert all(o in texts for o in ('First look', 'Specialist', 'Second look', 'weights back'))


def luminance(c):
    r, g, b = (int(c[i:i+2], 16)/255 for i in (1, 3, 5))
    return .2126*r**2.2 + .7152*g**2.2 + .0722*b**2.2


@pytest.mark.parametrize('palette,page', [(idea.LIGHT, '#ffffff'), (idea.DARK, '#0d1117')], ids=['light', 'dark'])
def test_words_are_readable(palette, page):
    "A contrast of 4.5 on the page and on the cards, as WCAG asks for"
    for k in ('ink', 'soft', 'wrong', 'learn'):
        for ground in (page, palette['card']):
            lo, hi = sorted((luminance(palette[k]), luminance(ground)))
            assert (hi+.05)/(lo+.05) >= 4.5, (k, ground)


def test_the_picture_tells_what_happened():
    d = json.loads(idea.DATA.read_text(encoding='utf-8'))
    def says(k): return d['classes'][max(range(3), key=d[k].__getitem__)]
    assert says('first') != d['truth'] == says('second') and max(d['first']) < .7 < max(d['second'])
    assert f"{d['F2T']} of {d['N']:,} test images" in front() and f"destroyed {d['T2F']}." in front()
    assert len(idea.unpack(d['image'])) == idea.SIDE**2 and all(len(o) == 3 for o in d['train'])


@pytest.mark.parametrize('text,base', [(front(), 'nbs'), (README, '.')], ids=['index', 'README'])
def test_each_theme_has_its_picture(text, base):
    pic = re.search(r'<picture>.*?</picture>', text, re.S)[0]
    dark, light = re.search(r'dark\)" srcset="([^"]+)', pic)[1], re.search(r'<img[^>]* src="([^"]+)', pic)[1]
    assert (ROOT/base/dark).samefile(idea.OUT/'idea-dark.svg') and (ROOT/base/light).samefile(idea.OUT/'idea-light.svg')
    assert f'alt="{idea.ALT}"' in pic


def test_the_site_has_both_pictures():
    "A page's own switch shows one of them, by their class"
    cell = nbformat.v4.new_markdown_cell(front())
    docs.both_themes(None).cell(cell)
    imgs = re.findall(r'<img class="only-(\w+)" alt="([^"]+)" src="images/idea-(\w+)\.svg"', cell.source)
    assert imgs == [('light', idea.ALT, 'light'), ('dark', idea.ALT, 'dark')] and '<picture' not in cell.source
    css = (ROOT/'nbs/styles.css').read_text()
    assert 'body.quarto-light .only-dark, body.quarto-dark .only-light { display: none' in css


def test_figures_of_the_readme_are_described():
    figures = re.findall(r'!\[([^\]]*)\]\((README_files/[^)]+)\)', README)
    assert figures and all(len(alt) > 40 and (ROOT/f).is_file() for alt, f in figures)


@pytest.mark.filterwarnings('ignore')
def test_ten_lines_on_your_own_model(tmp_path, monkeypatch):
    "As they stand in the README, on folders of four letters"
    import torch
    from fastai.vision.all import ImageDataLoaders, Learner
    from PIL import Image
    from torch import nn
    from closed_loop.data.glyphs import glyphs
    code = next(o for o in re.findall(r'```python\n(.*?)```', README, re.S) if 'cli_estimate' in o)
    assert len(code.strip().splitlines()) <= 10
    for split, n in dict(train=12, test=4).items():
        ds = glyphs(n, split, size=32, classes='OQCG')
        for i, (x, y) in enumerate(zip(ds.x, ds.targets)):
            f = tmp_path/split/'OQCG'[y]/f'{i}.png'
            f.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.numpy()).save(f)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    dls = ImageDataLoaders.from_folder('train', valid_pct=.2, bs=8, num_workers=0, device='cpu')
    names = dict(model=model, learn=Learner(dls, model, nn.CrossEntropyLoss()), targets=ds.targets)
    exec(code, names)
    assert len(names['res'].preds) == 16 and (tmp_path/'out/predictions.csv').exists()
