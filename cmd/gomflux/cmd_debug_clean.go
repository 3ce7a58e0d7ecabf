package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugCleanHelp = `Clean removes what sessions that have ended left in the folder of sockets, which
is in $XDG_RUNTIME_DIR or in the temporary folder: how they ended, and of killed
ones the socket and the lock. It does not touch sessions that live, and no
traces.

With --json it prints one object: removed, a list of the sessions.
` + sessionStatus

func newDebugCleanCommand() *cobra.Command {
	var o outputFlags
	cmd := &cobra.Command{
		Use:     "clean",
		Short:   "Remove what ended sessions have left",
		Long:    debugCleanHelp,
		Example: `  gomflux debug clean`,
		Args:    noArgs(" (gomflux debug terminate ends a session)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := protocol.OpenFolder()
			if err != nil {
				return coded(exitUsage, err)
			}
			removed, err := folder.Clean()
			if printErr := o.out(cmd).Result(cleanedSessions{removed}); printErr != nil {
				return printErr
			}
			return complainAll(o.out(cmd), err)
		},
	}
	o.addJSON(cmd.Flags(), "a JSON object")
	return cmd
}
