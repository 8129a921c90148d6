"The report: what it says, what it does with any name, that it stays small, and how it looks in a browser where Chromium is there."
import html, re
from dataclasses import replace

import pytest
import torch
from browser import CHROMIUM, browser

import closed_loop.report  # noqa: F401
from closed_loop.config import CLIConfig
from closed_loop.plan import Plan, Task
from closed_loop.fates import fates
from closed_loop.result import CLIResult

NAMES = ['煎锅', 'سلطعون', '🦀', '<script>alert(1)</script>', '"onerror="alert(2)', "it's $x_2$", 'x'*70, 'b\udcff', 'line\nbreak',
         'Dungeness crab, Cancer magister', '&amp;', '', ('a', 'tuple'), b'bytes', 7, '<img src=x onerror=alert(3)>']


def result(N=200, C=16, K=8, tasks=4, **kwargs):
    "Two looks at images of noise, the second one better"
    g = torch.Generator().manual_seed(0)
    y, z = torch.randint(C, (N,), generator=g), torch.randn(N, C, generator=g)
    z[range(N), y] += 1
    z[range(N), (y+1) % C] += 1                    # look-alikes
    hard, second = torch.arange(0, N, 2), z[::2].clone()
    second[range(len(hard)), y[::2]] += 1
    second[range(20), y[:40:2]] = -9               # and some worse
    plan = Plan([Task(hard[i::tasks].tolist(), [(i+j) % C for j in range(K)]) for i in range(tasks)], 'by hand', K)
    kw = dict(cfg=CLIConfig(rule='blend', alpha=1.), targets=y, vocab=[*NAMES, *range(C)][:C], times={'first look': .1, 'second look': 2.},
              check='sure of 80 %:\nas it <should> be', get_image=lambda i: torch.rand(3, 20, 30+i % 9, generator=g))
    return CLIResult(z, hard, second, plan, **{**kw, **kwargs})


def read(page): return page.read_text(encoding='utf-8')
def shown(name): return f'<bdi>{html.escape(str(name))}</bdi>'.encode('utf-8', 'backslashreplace').decode()


def test_gallery_names_the_true_class(tmp_path):
    res = result()
    said = re.findall(r'alt="image (\d+)".*?<figcaption>(.*?)</figcaption>', read(res.report(tmp_path)), re.S)
    fate = fates(res.first.argmax(1), res.preds, res.targets)
    assert {fate[int(i)] for i, _ in said} == {'F2T', 'F2F', 'T2F', 'T2T'} and len(said) <= 24
    for i, text in said:
        ys = (res.first[int(i)].argmax(), res.preds[int(i)], res.targets[int(i)])
        assert [o+'</bdi>' for o in re.findall(r'<bdi>.*?(?=</bdi>)', text, re.S)] == [shown(res.vocab[y]) for y in ys]
        assert [m for m in text if m in '✓✗'] == ['✗✓'[ys[0] == ys[2]], '✗✓'[ys[1] == ys[2]]]


def test_whole_class_lists_and_settings_are_folded(tmp_path):
    res = result()
    page = read(res.report(tmp_path))
    folded = re.findall(r'<details>(.*?)</details>', page, re.S)
    for t in res.plan: assert any(f"</summary>{', '.join(shown(res.vocab[c]) for c in t.classes)}" in o for o in folded)
    assert sum('<bdi>quantile</bdi>' in o for o in folded) == 1 and page.count('<bdi>quantile</bdi>') == 1
    assert not re.search('<details[^>]*open', page)


def test_it_explains_itself_and_links_what_is_there(tmp_path):
    res = result()
    page = read(res.report(tmp_path))
    assert 'F2T, false to true: answers that were mended' in page and 'T2F, true to false' in page
    links = re.findall(r'<a href="(.*?)"', page)
    assert 'predictions.csv' in links and all((tmp_path/o).exists() for o in links)
    (tmp_path/'predictions.csv').unlink()
    assert 'predictions.csv' not in read(res.report(tmp_path, saved=True))


def test_nothing_comes_from_elsewhere_and_no_name_is_markup(tmp_path):
    for res in (result(), result(targets=None)):
        page = read(res.report(tmp_path))
        refs = re.findall(r'(?:src|href)="(.*?)"', page)
        assert refs and all(re.match(r'data:image/png|#|[a-z]+\.(csv|json)$', o) for o in refs)
        tags = set(re.findall(r'<(\w+)', page))
        assert not tags & {'script', 'link', 'iframe', 'object'} and not re.search(r'url\((?!#)|@import|<[^>]*[\s"]onerror=', page)
        assert shown(NAMES[3]) in page and '\\udcff' in page


def test_odd_results_have_a_page(tmp_path):
    whole = result()
    none = torch.zeros(0, dtype=torch.long)
    odd = (dict(hard=none, second=whole.second[:0], plan=Plan([])), dict(vocab=None), dict(get_image=None), dict(targets=whole.preds),
           dict(second=whole.second*float('nan'), diverged=[0, 1, 2, 3]), dict(times={}))
    for kw in odd + tuple({**o, 'targets': None} for o in odd): assert 'Settings' in read(replace(whole, **kw).report(tmp_path))


def test_many_classes_and_tasks_make_no_large_page(tmp_path):
    res = result(4000, 1000, 100, 300, vocab=[f'class {i}, also called number {i}' for i in range(1000)], get_image=lambda i: torch.rand(3, 224, 224))
    for t in (res.targets, None):
        page = replace(res, targets=t).report(tmp_path)
        assert page.stat().st_size < 3e6 and read(page).count('<img') <= 24 and read(page).count('<tr') < 200
        assert 'The 20 largest' in read(page)


LOOK = """(() => {
  const all = [...document.querySelectorAll('body, body *')];
  const linear = v => v <= .03928 ? v/12.92 : ((v+.055)/1.055)**2.4;
  const lum = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => linear(v/255)); return .2126*r+.7152*g+.0722*b };
  const own = o => [...o.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()), box = o => o.getBoundingClientRect();
  const text = all.filter(o => own(o) && !o.closest('style') && o.checkVisibility() && box(o).width);
  const bg = matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
  const ink = o => o.closest('svg') ? getComputedStyle(o).fill : getComputedStyle(o).color;
  const contrast = o => { const [a, b] = [lum(ink(o)), lum(bg)].sort((p, q) => q-p); return (a+.05)/(b+.05) };
  const px = o => parseFloat(getComputedStyle(o).fontSize)*(o.closest('svg') ? Math.hypot(o.getScreenCTM().a, o.getScreenCTM().b) : 1);
  return {wide: document.documentElement.scrollWidth,
    scrolls: [...document.querySelectorAll('.wrap')].filter(o => o.scrollWidth > o.clientWidth).length,
    out: all.filter(o => box(o).right > innerWidth+1).length, broken: [...document.images].filter(o => !o.naturalWidth).length, texts: text.length,
    faint: text.filter(o => contrast(o) < 4.5).map(o => o.textContent), small: text.filter(o => px(o) < 9).map(o => o.textContent)}
})()"""


@pytest.mark.skipif(not CHROMIUM, reason='Chromium is not installed (on Debian: apt install chromium)')
@pytest.mark.parametrize('labels', [True, False])
def test_in_a_browser(labels, tmp_path):
    "Wide and narrow, light and dark: no console error, nothing fetched, nothing cut off, all text large and clear enough"
    res = result()
    page = (res if labels else replace(res, targets=None)).report(tmp_path/'report')
    with browser(tmp_path/'profile') as tab:
        for width in (1400, 400):
            for mode in ('light', 'dark'):
                tab.size(width)
                tab.call('Emulation.setEmulatedMedia', features=[dict(name='prefers-color-scheme', value=mode)])
                assert tab.open(page.as_uri()) == []
                for opened in (False, True):
                    if opened: tab.eval("document.querySelectorAll('details').forEach(o => o.open = true)")
                    seen = tab.eval(LOOK)
                    assert seen.pop('texts') > 100
                    assert seen == dict(wide=width, scrolls=0, out=0, broken=0, faint=[], small=[]), (width, mode, opened)
