package parity

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsClearHelp = `Clear removes tensors of the latest run of gomflux: those with the given names,
or without names all of them, with the run's traces and checkpoints. --side
selects the reference's run, or both. With --archive it removes all earlier runs
instead, of both sides unless --side is given, and the traces and logs of
debugging sessions that have ended (gomflux debug clean removes these alone).

Without names it asks first, and names the size. Without a terminal to ask on,
--yes is required. --dry-run only lists what would be removed.

With --json it prints one object: removed (number of files or runs), traces
(number of files of sessions) and bytes.
` + cli.ExitStatus

// clearOptions are the flags of gomflux tensors clear.
type clearOptions struct {
	record.TreeFlags
	side    cli.Optional[string]
	archive bool
	ask     cli.ConfirmFlags
}

func newTensorsClearCommand() *cobra.Command {
	o := &clearOptions{side: cli.OneOf("side", runs.Gomflux, runs.Reference, "both")}
	cmd := &cobra.Command{
		Use:   "clear [NAME...]",
		Short: "Remove saved tensors or earlier runs",
		Long:  tensorsClearHelp,
		Example: `  gomflux tensors clear latents@0
  gomflux tensors clear --side both --yes
  gomflux tensors clear --archive`,
		ValidArgsFunction: o.Complete,
		RunE: o.With(func(cmd *cobra.Command, tree *runs.Tree, args []string) error {
			if o.archive && len(args) > 0 {
				return cli.UsageErrorf("--archive removes runs, not tensors: give no names with it")
			}
			return o.run(cmd.Context(), cmd.InOrStdin(), o.Out(cmd), tree, args)
		}),
	}
	o.Add(cmd)
	f := cmd.Flags()
	f.Var(&o.side, "side", "whose tensors to remove: gomflux, reference or both")
	f.BoolVar(&o.archive, "archive", false, "remove the earlier runs")
	o.ask.Add(cmd)
	return cmd
}

// sides returns the sides whose runs are meant.
func (o *clearOptions) sides() []string {
	switch side := o.side.OrZero(); {
	case side == "both" || side == "" && o.archive:
		return runs.Sides
	case side != "":
		return []string{side}
	}
	return []string{runs.Gomflux}
}

// A cleared is what tensors clear prints.
type cleared struct {
	Removed int   `json:"removed"`
	Traces  int   `json:"traces,omitempty"`
	Bytes   int64 `json:"bytes"`
}

// Text implements ui.Result. For people there is a note instead.
func (cleared) Text(*ui.Page) {}

func (o *clearOptions) run(ctx context.Context, stdin io.Reader, out *ui.Output, tree *runs.Tree, names []string) error {
	sides := o.sides()
	for _, side := range sides {
		if !o.archive && tree.Busy(side) {
			return fmt.Errorf("a run of %s is in progress in %s: its tensors cannot be removed until it ends", side, tree.Root)
		}
	}
	c, err := o.find(tree, sides, names)
	if err != nil {
		return notFound(err)
	}
	if o.ask.Dry {
		out.Note("would remove %s", c.what)
		return out.Result(c.cleared)
	}
	if len(names) == 0 {
		if ok, err := o.ask.Confirm(ctx, stdin, out, "remove", c.what); err != nil || !ok {
			return err
		}
	}
	if err := tree.Prune(c.earlier); err != nil {
		return err
	}
	if err := runs.RemoveFiles(c.files); err != nil {
		return err
	}
	out.Note("%s removed", c.counted())
	return out.Result(c.cleared)
}

// A clearing is what is to be removed: runs with --archive and files.
type clearing struct {
	cleared
	earlier []runs.RunInfo
	files   []runs.File
	what    string // for people
}

// counted describes it by numbers alone.
func (c clearing) counted() string {
	text := ui.Plural(c.Removed, "file")
	if c.earlier != nil {
		text = ui.Plural(c.Removed, "run") + " and " + ui.Plural(c.Traces, "file") + " of debugging sessions"
	}
	return text + ", " + units.Bytes(c.Bytes)
}

// find lists what is to be removed.
func (o *clearOptions) find(tree *runs.Tree, sides, names []string) (c clearing, err error) {
	if !o.archive {
		if c.files, err = tree.Clearable(sides, names); err != nil {
			return c, err
		}
		c.Removed = len(c.files)
		c.what = "all tensors of the latest run of " + strings.Join(sides, " and ")
	} else {
		all, err := tree.Archived()
		if err != nil {
			return c, err
		}
		c.earlier = append([]runs.RunInfo{}, all...) // not nil
		c.earlier = slices.DeleteFunc(c.earlier, func(r runs.RunInfo) bool { return !slices.Contains(sides, r.Side) })
		if c.files, err = oldTraces(tree); err != nil {
			return c, err
		}
		c.Removed, c.Traces = len(c.earlier), len(c.files)
		c.what = "the earlier runs in " + tree.Root
	}
	for _, r := range c.earlier {
		c.Bytes += r.Bytes
	}
	for _, f := range c.files {
		c.Bytes += f.Size
	}
	if len(names) > 0 {
		c.what = strings.Join(names, ", ")
	}
	c.what += " (" + c.counted() + ")"
	return c, nil
}

// oldTraces lists the files of debugging sessions that have ended.
func oldTraces(tree *runs.Tree) ([]runs.File, error) {
	folder, err := protocol.OpenFolder()
	if err != nil {
		return nil, cli.Coded(cli.ExitUsage, err)
	}
	all, err := folder.Sessions()
	if err != nil {
		return nil, err
	}
	return protocol.Old(tree, slices.DeleteFunc(all, protocol.Status.Ended))
}
