package save

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// rowsBytes is how much of a tensor is packed and written at a time.
var rowsBytes = 8 << 20

// inRows calls f with a tensor, some of its rows at a time.
func inRows(a *mlx.Array, f func(rows *mlx.Array) error) error {
	if a.Ndim() == 0 || a.Nbytes() <= rowsBytes {
		return f(a)
	}
	n := a.Dim(0)
	step := max(1, int(int64(n)*int64(rowsBytes)/int64(a.Nbytes())))
	for at := 0; at < n; at += step {
		var err error
		mlx.Scope(func() *mlx.Array {
			err = f(a.Slice(0, at, min(at+step, n)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read is the tensor as LoRAs change it.
func (e *entry) read(r *nn.Reader) *mlx.Array {
	a := r.Plain(e.found)
	if e.adapt != nil {
		a = e.adapt(a)
		mlx.Eval(a)
	}
	return a
}

// writeKept writes a matrix as it is stored.
func (e *entry) writeKept(r *nn.Reader, put func([]byte) error) error {
	for _, a := range r.Packed(e.found).Arrays() {
		if err := put(a.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// writePlain writes a tensor that is not packed.
func (e *entry) writePlain(a *mlx.Array, put func([]byte) error) error {
	return inRows(a, func(rows *mlx.Array) error {
		if rows.Dtype() != e.dtype {
			rows = rows.AsType(e.dtype)
		}
		if err := e.checkFinite(rows); err != nil {
			return err
		}
		if e.form != nil {
			rows = e.form(rows)
		}
		return put(rows.Bytes())
	})
}

// writePacked packs a matrix and writes it, and returns the relative error of what
// is written.
func (e *entry) writePacked(a *mlx.Array, put func([]byte) error) (float64, error) {
	var rest [2][]byte // scales and biases, which come behind the whole of the packed weights
	var off, whole float64
	if err := inRows(a, func(rows *mlx.Array) error {
		plain := rows.AsType(mlx.Float32)
		rows = rows.AsType(e.dtype)
		if err := e.checkFinite(rows); err != nil {
			return err
		}
		q := rows.Quantize(*e.pack)
		off += component.SumOfSquares(q.Dequantize(mlx.Float32).Sub(plain))
		whole += component.SumOfSquares(plain)
		for i, part := range q.Arrays()[1:] {
			rest[i] = append(rest[i], part.Bytes()...)
		}
		return put(q.Packed.Bytes())
	}); err != nil {
		return 0, err
	}
	for _, data := range rest[:len(e.slots)-1] {
		if err := put(data); err != nil {
			return 0, err
		}
	}
	if whole == 0 {
		return 0, nil
	}
	return math.Sqrt(off / whole), nil
}

// checkFinite refuses NaN and infinite weights: no picture could be made of them.
func (e *entry) checkFinite(a *mlx.Array) error {
	if a.AllFinite() {
		return nil
	}
	return fmt.Errorf("%s: tensor %s: has NaN or infinite values as %v%s", e.found.File, e.found.Name, a.Dtype(), nn.RangeHint(a.Dtype()))
}
