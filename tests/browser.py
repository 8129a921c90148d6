"Pages in a headless Chromium, driven through a pipe: no server, no package."
import base64, json, os, shutil, subprocess, threading
from contextlib import contextmanager

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
FLAGS = """--headless --no-sandbox --disable-gpu --disable-background-networking --disable-sync --no-first-run --disable-extensions
--disable-component-update --allow-file-access-from-files --hide-scrollbars --remote-debugging-pipe""".split()


class Page:
    "One tab: open pages, evaluate JavaScript, collect what goes wrong"
    def __init__(self, send, recv):
        self.send, self.recv, self.parts, self.n, self.session, self.events = send, recv, [b''], 0, None, []
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for o in ('Page', 'Runtime', 'Log', 'Network'): self.call(f'{o}.enable')

    def read(self):
        "The next message; an event is kept"
        while len(self.parts) < 2: # what follows the last zero is not whole yet
            if not (c := os.read(self.recv.fileno(), 1 << 16)): raise RuntimeError('Chromium has gone')
            first, *rest = c.split(b'\0')
            self.parts = [*self.parts[:-1], self.parts[-1]+first, *rest]
        msg = json.loads(self.parts.pop(0))
        if 'method' in msg: self.events.append(msg)
        return msg

    def call(self, method, **params):
        "Send a command and wait for its answer"
        self.n += 1
        msg = dict(id=self.n, method=method, params=params, **({'sessionId': self.session} if self.session else {}))
        self.send.write(json.dumps(msg).encode() + b'\0')
        self.send.flush()
        while (res := self.read()).get('id') != self.n: pass
        if 'error' in res: raise RuntimeError(f"{method}: {res['error']}")
        return res['result']

    def open(self, url):
        "Go to `url`, wait until it is loaded, and return what went wrong on the way"
        self.events.clear()
        self.call('Page.navigate', url=url)
        while not any(o['method'] == 'Page.loadEventFired' for o in self.events): self.read()
        self.eval('new Promise(r => setTimeout(r, 50))')
        return [str(p) for o in self.events if (p := trouble(o['method'], o['params']))]

    def eval(self, js):
        "Value of a JavaScript expression"
        res = self.call('Runtime.evaluate', expression=js, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in res: raise RuntimeError(res['exceptionDetails'])
        return res['result'].get('value')

    def size(self, width, height=900):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)

    def shot(self, path, **kwargs):
        "A picture of what is seen"
        path.write_bytes(base64.b64decode(self.call('Page.captureScreenshot', format='png', **kwargs)['data']))


def trouble(method, p):
    "What an event of the browser says about something that failed, if it does"
    if method == 'Runtime.exceptionThrown': return p['exceptionDetails'].get('exception', p['exceptionDetails']).get('description')
    if method == 'Runtime.consoleAPICalled' and p['type'] == 'error': return [o.get('value') for o in p['args']]
    if method == 'Log.entryAdded' and p['entry']['level'] == 'error': return f"{p['entry']['text']} {p['entry'].get('url', '')}"
    if method == 'Network.requestWillBeSent' and p['request']['url'].startswith('http'): return f"fetches {p['request']['url']}"


@contextmanager
def browser(folder, seconds=300):
    "A page in a Chromium whose profile is in `folder`; one that hangs is ended"
    (r_in, w_in), (r_out, w_out) = os.pipe(), os.pipe()
    def wire(): # Chromium listens on descriptor 3 and answers on 4
        a, b = os.dup(r_in), os.dup(w_out)
        os.dup2(a, 3); os.dup2(b, 4)
    proc = subprocess.Popen([CHROMIUM, *FLAGS, f'--user-data-dir={folder}'], preexec_fn=wire, close_fds=False,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(r_in); os.close(w_out)
    end = threading.Timer(seconds, proc.kill)
    end.start()
    try:
        with open(w_in, 'wb') as send, open(r_out, 'rb') as recv:
            yield Page(send, recv)
    finally:
        end.cancel()
        proc.terminate()
        proc.wait(20)
