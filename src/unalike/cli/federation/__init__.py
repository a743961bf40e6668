"""`unalike federation`: federations with real sites; commands to a running coordinator are in `control.py`."""

from unalike.cli.federation import control, init, keys, summarize, up
from unalike.cli.federation.control import audit, rollback, stop
from unalike.cli.flags import needs_federation
from unalike.cli.help_pages import CommandApp

HELP = """Run federations over a network. Each site keeps its data.

\b
unalike federation up --local 3 --data digits --method fedmix --rounds 2 --out fed   # all sites on this machine
unalike federation init hospitals --sites 5 --like sample.npz --host fed.example.org # over a network: make keys,
unalike federation up hospitals                                                      # start the coordinator,
unalike join site-1.zip --data mine.npz                                              # and run this on every site
unalike federation init look --sites 5 --shape 8 --classes 2 --method diagnosis      # or ask first how the sites differ
"""

app = CommandApp(help=HELP)
app.command(summarize.NAME)(summarize.command)
for module in (init, up):
    app.command(module.NAME)(needs_federation(module.command))
# the order is that of the help page
for command in (
    control.status,
    control.run,
    stop,
    keys.keys,
    init.enrol,
    keys.renew,
    keys.revoke,
    rollback,
    audit,
):
    app.command()(needs_federation(command))
for name in control.HELP:
    app.command(name)(needs_federation(control.command_of(name)))
