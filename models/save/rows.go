package save

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// rowsBytes is the number of bytes of a tensor that are quantized and written at a time.
var rowsBytes = 8 << 20

// inRows calls f with the rows of a tensor, some at a time.
func inRows(a *mlx.Array, f func(rows *mlx.Array) error) error {
	if a.Ndim() == 0 || a.Nbytes() <= rowsBytes {
		return f(a)
	}
	n := a.Dim(0)
	step := max(1, int(int64(n)*int64(rowsBytes)/int64(a.Nbytes())))
	for at := 0; at < n; at += step {
		var err error
		mlx.WithScope(func() {
			err = f(a.Slice(0, at, min(at+step, n)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads the tensor and applies LoRAs to it.
func (e *entry) read(r *nn.Reader) *mlx.Array {
	a := r.Plain(e.found)
	if e.applyLoRAs != nil {
		a = e.applyLoRAs(a)
		mlx.Eval(a)
	}
	return a
}

// writeKept writes a quantized matrix as it is stored.
func (e *entry) writeKept(r *nn.Reader, put func([]byte) error) error {
	for _, a := range r.Packed(e.found).Arrays() {
		if err := put(a.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// writePlain writes a tensor without quantization.
func (e *entry) writePlain(a *mlx.Array, put func([]byte) error) error {
	return inRows(a, func(rows *mlx.Array) error {
		if rows.Dtype() != e.dtype {
			rows = rows.AsType(e.dtype)
		}
		if err := e.checkFinite(rows); err != nil {
			return err
		}
		if e.transform != nil {
			rows = e.transform(rows)
		}
		return put(rows.Bytes())
	})
}

// writeQuantized quantizes and writes a matrix, and returns the relative error.
func (e *entry) writeQuantized(a *mlx.Array, put func([]byte) error) (float64, error) {
	var rest [2][]byte // scales and biases, which are written after all quantized weights
	var off, whole float64
	if err := inRows(a, func(rows *mlx.Array) error {
		plain := rows.AsType(mlx.Float32)
		rows = rows.AsType(e.dtype)
		if err := e.checkFinite(rows); err != nil {
			return err
		}
		q := rows.Quantize(*e.quantize)
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

// checkFinite returns an error for NaN and infinite weights, which would make the model
// useless.
func (e *entry) checkFinite(a *mlx.Array) error {
	if a.AllFinite() {
		return nil
	}
	return fmt.Errorf("%s: tensor %s: has NaN or infinite values as %v%s", e.found.File, e.found.Name, a.Dtype(), nn.RangeHint(a.Dtype()))
}
