package serve

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"image"
	"image/color"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// pause is how long ranks sleep between two questions whether there is something to do. In a collective that waits for
// hours, ring keeps a core busy and nccl the GPU, and what is between two machines may drop a silent connection.
const pause = 100 * time.Millisecond

// An order is what rank 0 tells the others to do at the same time.
type order struct {
	Do      string // open, generate, close, release or end
	Model   string
	LoRAs   []gomflux.LoRA
	Options gomflux.Options
	Set     []bool   // the pointers in Options that are set: gob leaves out those to zero
	Seeds   []uint64 // of the image, or of an image for each rank
}

func init() {
	for _, v := range []any{
		&image.RGBA{}, &image.NRGBA{}, &image.RGBA64{}, &image.NRGBA64{}, &image.Gray{}, &image.Gray16{}, &image.Alpha{}, &image.Alpha16{},
		&image.YCbCr{}, &image.NYCbCrA{}, &image.CMYK{}, &image.Paletted{}, color.RGBA{}, color.NRGBA{},
	} {
		gob.Register(v) // of Options; functions are left out
	}
}

func (o *order) encode() ([]byte, error) {
	pointers(reflect.ValueOf(&o.Options).Elem(), func(p reflect.Value) { o.Set = append(o.Set, !p.IsNil()) })
	var text bytes.Buffer
	err := gob.NewEncoder(&text).Encode(o)
	return text.Bytes(), err
}

func decodeOrder(text []byte) (o order, err error) {
	err = gob.NewDecoder(bytes.NewReader(text)).Decode(&o)
	pointers(reflect.ValueOf(&o.Options).Elem(), func(p reflect.Value) {
		if len(o.Set) > 0 && o.Set[0] && p.IsNil() {
			p.Set(reflect.New(p.Type().Elem()))
		}
		o.Set = o.Set[min(1, len(o.Set)):]
	})
	return o, err
}

// pointers calls f for all exported pointers in a struct, before it goes on with what they point to.
func pointers(v reflect.Value, f func(reflect.Value)) {
	for field, v := range v.Fields() {
		if field.IsExported() && v.Kind() == reflect.Pointer {
			f(v)
			v = v.Elem()
		}
		if field.IsExported() && v.Kind() == reflect.Struct {
			pointers(v, f)
		}
	}
}

// A group is the ranks that generate the images of a server together. Rank 0 is the server, and tells the others what to
// do. Those ask for it all the time.
type group struct {
	*gomflux.Group            // nil for a process that is alone
	engine         *mlx.Group // the same
	split          gomflux.Split
	end            func(error) // ends rank 0

	mu   sync.Mutex // held by rank 0 from an order until it is done
	over error      // why there are no more orders; guarded by mu
}

// join connects this process with the others.
func (g *group) join(ctx context.Context, split *cli.SplitFlag, out *ui.Output) (err error) {
	g.split = split.OrZero()
	g.Group, g.engine, err = cli.JoinEngine(ctx, split.Value, out)
	return err
}

// tell tells the others an order, if there are any, and returns what do returns, which does it here.
func (g *group) tell(o order, do func() error) error {
	if g.Size() == 1 {
		return do()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over != nil {
		return g.over
	}
	text, err := o.encode()
	if err != nil {
		return err
	}
	g.over = errors.New("the processes of the server have failed") // unless it ends well: a panic does not
	defer func() {
		if g.over != nil {
			g.end(g.over)
		}
	}()
	if _, err = g.Gather(context.Background(), text); err != nil {
		return err
	}
	err = do()
	g.over = fatal(err)
	return err
}

// finish ends the other ranks, and returns why those of the server could not go on, if that is so.
func (g *group) finish() error {
	defer g.mu.Lock() // for ever: nobody asks any more
	return g.tell(order{Do: "end"}, func() error { return nil })
}

// fatal returns an error of an order after which the ranks cannot go on, nil for others.
func fatal(err error) error {
	if e, ok := errors.AsType[*models.GroupError](err); ok && e.Broken {
		return err
	}
	return nil
}

// agree returns an error in all ranks if one of them passes an error. What they have agreed on it returns as it is.
func (g *group) agree(err error) error {
	if g.Size() == 1 {
		return err
	}
	return mlx.Do(context.Background(), func() error { return models.Agree(g.engine, nil, err) })
}

// wait answers the others while rank 0 has nothing to tell. One that is to end ends the server.
func (g *group) wait() {
	for ; ; time.Sleep(pause) {
		mlx.Do(context.Background(), func() error {
			if !g.mu.TryLock() { // not Lock: an order needs this thread
				return nil
			}
			defer g.mu.Unlock()
			asked := func(text []byte) bool { return len(text) > 0 }
			if g.over == nil && slices.ContainsFunc(g.engine.Gather(nil), asked) {
				g.end(cli.ErrInterrupted)
			}
			return nil
		})
	}
}

// next waits for the next order. When ctx is done, it asks rank 0 to end all.
func (g *group) next(ctx context.Context) (o order, err error) {
	for ; ; time.Sleep(pause) {
		var ends []byte
		if ctx.Err() != nil {
			ends = []byte{1}
		}
		all, err := g.Gather(context.WithoutCancel(ctx), ends)
		if err != nil {
			return o, err
		}
		if len(all[0]) > 0 {
			return decodeOrder(all[0])
		}
	}
}

// follow does what rank 0 orders, until it ends.
func (g *group) follow(ctx context.Context, served *servedModels) error {
	var model *gomflux.Model // the one that rank 0 has too
	for {
		o, err := g.next(ctx)
		if err != nil {
			return err
		}
		switch o.Do {
		case "open":
			model, err = served.load(context.WithoutCancel(ctx), o.Model, o.LoRAs, nil)
		case "generate":
			_, err = g.generate(context.WithoutCancel(ctx), model, o.Options, o.Seeds)
		case "close":
			err = model.Close()
		case "release":
			err = gomflux.ReleaseMemory(context.WithoutCancel(ctx))
		case "end":
			return nil
		}
		if fatal(err) != nil {
			return err
		}
	}
}

// generate generates the image of a seed in all ranks, or one of several seeds in each.
func (g *group) generate(ctx context.Context, m *gomflux.Model, o gomflux.Options, seeds []uint64) ([]*gomflux.Result, error) {
	if len(seeds) == 1 {
		o.Seed = &seeds[0]
		result, err := m.Generate(ctx, o)
		return []*gomflux.Result{result}, err
	}
	step := o.OnStep
	o.Seed = &seeds[g.Rank()]
	o.OnStep = func(s gomflux.Step) error {
		if step != nil {
			step(s) // previews never fail
		}
		return g.agree(context.Cause(ctx))
	}
	result, err := m.Generate(context.WithoutCancel(ctx), o)
	if err = g.agree(err); err != nil {
		return nil, err
	}
	results, err := cli.Gather(context.Background(), g.Group, result)
	if err != nil {
		err = &models.GroupError{Err: err, Broken: true}
	}
	return results, err
}

// A groupModel is a model that all ranks have loaded.
type groupModel struct {
	*gomflux.Model
	group *group
}

// Round implements [engine.Rounds]: each rank generates an image if there are enough of them, and otherwise all
// generate the first one.
func (m *groupModel) Round(ctx context.Context, o gomflux.Options, seeds []uint64) (results []*gomflux.Result, err error) {
	g, n := m.group, 1
	o.Split = g.split
	if len(seeds) >= g.Size() && (o.Split == "" || o.Split == gomflux.AutoSplit || o.Split == gomflux.SplitPictures) {
		o.Split, n = gomflux.SplitPictures, g.Size()
	}
	if err := m.Check(o); err != nil { // before the others know of it
		return nil, err
	}
	do := func() error {
		results, err = g.generate(ctx, m.Model, o, seeds[:n])
		return err
	}
	told := order{Do: "generate", Options: o, Seeds: seeds[:n]}
	switch {
	case n == 1 && o.Split == gomflux.SplitPictures: // rank 0 alone
		err = do()
		return results, err
	case n == 1 && o.Enlarge != nil && o.Enlarge.Refine == nil:
		told.Options.Enlarge = nil // rank 0 alone
	}
	err = g.tell(told, do)
	return results, err
}

// Close implements [engine.Model].
func (m *groupModel) Close() error { return m.group.tell(order{Do: "close"}, m.Model.Close) }
