package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugSessionsHelp = `Sessions lists the debugging sessions of gomflux and of the reference that live,
and those that have ended since the last time. It notices sessions whose process
was killed, and removes their sockets and locks.

With --json it prints one object: sessions, a list of session, side, state,
progress, stop, error, exit_code, command, pid, began, run, trace and output.
` + sessionStatus

func newDebugSessionsCommand() *cobra.Command {
	var o outputFlags
	cmd := &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions",
		Long:    debugSessionsHelp,
		Example: `  gomflux debug sessions --json | jq -r '.sessions[] | select(.state == "stopped") | .session'`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := protocol.OpenFolder()
			if err != nil {
				return coded(exitUsage, err)
			}
			all, err := folder.Sessions()
			if printErr := o.out(cmd).Result(sessionList{all}); printErr != nil {
				return printErr // they are listed again the next time
			}
			if err == nil {
				err = folder.Forget(all)
			}
			return complainAll(o.out(cmd), err)
		},
	}
	o.addJSON(cmd.Flags(), "a JSON object")
	return cmd
}
