"""The debugger of the reference's side: a run that stops at tensors and at lines, and the commands that control it.

    command    the commands, as users type them; start starts the process of a session
    text       answers as text
    wire       the folder of sessions, and the messages between them and commands
    process    the process of a session
    session    its state, its commands and its trace
    breakpoints, lines    where it stops: at tensors, and at lines of files
    tensors    the stops at tensors, through the hooks of record.Recorder
    expressions    Python at a stop

Nothing here imports torch before the run does. The protocol is that of debugger/protocol in Go.
"""

current = None  # the session that this process is


def attach(recorder):
    """Returns the tensors of a recorder's run for the session that this process is; None without one."""
    return current.attach(recorder) if current else None
