"Ctrl-C is tried out, also where tests were started in the background, which ignores it"
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
