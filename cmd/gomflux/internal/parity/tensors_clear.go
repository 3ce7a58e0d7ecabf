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
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

const tensorsClearHelp = `Clear removes tensors of the latest run of gomflux: those with the given names,
or without names all of them. --side selects the reference's run, or both. With
--archive it removes all earlier runs instead, of both sides unless --side is
given.

Without names it asks first. Without a terminal to ask on, --yes is required.

With --json it prints one object: removed (number of files or runs) and bytes.
` + cli.ExitStatus

// clearOptions are the flags of gomflux tensors clear.
type clearOptions struct {
	record.TreeFlags
	side         cli.Optional[string]
	archive, yes bool
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
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := o.Open()
			if err != nil {
				return err
			}
			if err := o.validate(args); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.InOrStdin(), o.Out(cmd), tree, args)
		},
	}
	o.Add(cmd)
	f := cmd.Flags()
	f.Var(&o.side, "side", "whose tensors to remove: gomflux, reference or both")
	f.BoolVar(&o.archive, "archive", false, "remove the earlier runs")
	cli.AddYes(cmd, &o.yes, "")
	return cmd
}

func (o *clearOptions) validate(names []string) error {
	if o.archive && len(names) > 0 {
		return cli.UsageErrorf("--archive removes runs, not tensors: give no names with it")
	}
	return nil
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
	Bytes   int64 `json:"bytes"`
}

// Text implements ui.Result. For people there is a note instead.
func (cleared) Text(*ui.Page) {}

func (o *clearOptions) run(ctx context.Context, stdin io.Reader, out *ui.Output, tree *runs.Tree, names []string) error {
	sides := o.sides()
	var earlier []runs.Archive
	what := "all tensors of the latest run of " + strings.Join(sides, " and ")
	if o.archive {
		all, err := tree.Archived()
		if err != nil {
			return err
		}
		earlier = slices.DeleteFunc(all, func(a runs.Archive) bool { return !slices.Contains(sides, a.Side) })
		what = fmt.Sprintf("%d earlier runs in %s", len(earlier), tree.Root)
	}
	for _, side := range sides {
		if !o.archive && tree.Busy(side) {
			return fmt.Errorf("a run of %s is in progress in %s: its tensors cannot be removed until it ends", side, tree.Root)
		}
	}
	if len(names) == 0 && !o.yes {
		ok, err := cli.Confirm(ctx, stdin, out, what)
		if err != nil || !ok {
			return err
		}
	}
	r, err := o.remove(tree, sides, names, earlier)
	if err != nil {
		return notFound(err)
	}
	kind := "files"
	if o.archive {
		kind = "runs"
	}
	out.Note("%d %s removed, %s", r.Removed, kind, units.Bytes(r.Bytes))
	return out.Result(r)
}

// remove removes runs with --archive, and tensors otherwise.
func (o *clearOptions) remove(tree *runs.Tree, sides, names []string, earlier []runs.Archive) (r cleared, err error) {
	if !o.archive {
		r.Removed, r.Bytes, err = tree.Clear(sides, names)
		return r, err
	}
	for _, a := range earlier {
		r.Bytes += a.Size
	}
	r.Removed = len(earlier)
	return r, tree.Prune(earlier)
}
