package checkpoint

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/gomflux/gomflux/internal/oserr"
)

// A Float is a float64 that can be NaN or infinite in JSON, as "NaN", "Infinity"
// or "-Infinity".
type Float float64

// Floats returns numbers for JSON, never nil.
func Floats(values []float64) []Float {
	out := make([]Float, len(values))
	for i, v := range values {
		out[i] = Float(v)
	}
	return out
}

// MarshalJSON implements json.Marshaler.
func (f Float) MarshalJSON() ([]byte, error) {
	switch v := float64(f); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(v, -1):
		return []byte(`"-Infinity"`), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Float) UnmarshalJSON(data []byte) error {
	var word string
	if json.Unmarshal(data, &word) != nil {
		return json.Unmarshal(data, (*float64)(f))
	}
	switch word {
	case "NaN":
		*f = Float(math.NaN())
	case "Infinity":
		*f = Float(math.Inf(1))
	case "-Infinity":
		*f = Float(math.Inf(-1))
	default:
		return fmt.Errorf("%q is not a number", word)
	}
	return nil
}

// Stats are the statistics of a tensor. Min, Max, Mean and Std are those of the
// finite elements, or NaN if there are no finite elements. Std is the population's
// standard deviation, as in NumPy.
type Stats struct {
	Min  Float `json:"min"`
	Max  Float `json:"max"`
	Mean Float `json:"mean"`
	Std  Float `json:"std"`
	NaN  int   `json:"nan"`
	Inf  int   `json:"inf"`
}

// Finite reports whether all elements are finite.
func (s Stats) Finite() bool { return s.NaN+s.Inf == 0 }

// Range returns the text "min to max", followed by the numbers of NaN and infinite
// elements.
func (s Stats) Range() string {
	text := fmt.Sprintf("%.6g to %.6g", float64(s.Min), float64(s.Max))
	if math.IsNaN(float64(s.Min)) {
		text = "nothing finite"
	}
	return text + s.NotFinite(", ")
}

// NotFinite returns a prefix and the numbers of NaN and infinite elements, "" if all are finite.
func (s Stats) NotFinite(prefix string) string {
	switch {
	case s.NaN > 0 && s.Inf > 0:
		return fmt.Sprintf("%s%d NaN, %d infinite", prefix, s.NaN, s.Inf)
	case s.NaN > 0:
		return fmt.Sprintf("%s%d NaN", prefix, s.NaN)
	case s.Inf > 0:
		return fmt.Sprintf("%s%d infinite", prefix, s.Inf)
	}
	return ""
}

// Summarize returns the statistics of values.
func Summarize[T float32 | float64](values []T) Stats { return sumUp(values).Stats() }

// A Summary computes statistics of elements that come in parts. Its zero value is
// ready to use.
type Summary struct {
	n        float64 // number of finite elements; if 0, the next four are undefined
	min, max float64
	mean, m2 float64 // m2 is the sum of squared differences from the mean
	nan, inf int
}

// Add adds elements.
func (m *Summary) Add(values []float64) { m.join(sumUp(values)) }

// Join adds the statistics of n elements.
func (m *Summary) Join(part Stats, n int) {
	finite, std := float64(n-part.NaN-part.Inf), float64(part.Std)
	m.join(Summary{finite, float64(part.Min), float64(part.Max), float64(part.Mean), std * std * finite, part.NaN, part.Inf})
}

// sumUp sums up elements in two passes.
func sumUp[T float32 | float64](values []T) Summary {
	m := Summary{min: math.Inf(1), max: math.Inf(-1)}
	var sum float64
	for _, v := range values {
		v := float64(v)
		switch {
		case math.IsNaN(v):
			m.nan++
		case math.IsInf(v, 0):
			m.inf++
		default:
			m.n++
			sum += v
			m.min, m.max = min(m.min, v), max(m.max, v)
		}
	}
	if m.n == 0 {
		return m
	}
	m.mean = sum / m.n
	for _, v := range values {
		if d := float64(v) - m.mean; !math.IsNaN(d) && !math.IsInf(d, 0) {
			m.m2 += d * d
		}
	}
	return m
}

// join adds other elements with the method of Chan, Golub and LeVeque.
func (m *Summary) join(part Summary) {
	part.nan += m.nan
	part.inf += m.inf
	if m.n == 0 { // exactly: below, the mean would be rounded
		*m = part
		return
	}
	m.nan, m.inf = part.nan, part.inf
	if part.n == 0 {
		return
	}
	m.min, m.max = min(m.min, part.min), max(m.max, part.max)
	d, all := part.mean-m.mean, m.n+part.n
	m.m2 += part.m2 + d*d*m.n*part.n/all
	m.mean += d * part.n / all
	m.n = all
}

// Stats returns the statistics of all elements so far.
func (m Summary) Stats() Stats {
	if m.n == 0 {
		nan := Float(math.NaN())
		return Stats{nan, nan, nan, nan, m.nan, m.inf}
	}
	return Stats{Float(m.min), Float(m.max), Float(m.mean), Float(math.Sqrt(m.m2 / m.n)), m.nan, m.inf}
}

// summarize reads the elements of a tensor in chunks and returns their statistics
// and the first elements.
func summarize(r io.Reader, t Tensor, first int) (Stats, []float64, error) {
	var s Summary
	size := t.Dtype.Size()
	most := min(chunk, t.Len())
	data, values := make([]byte, most*size), make([]float64, most)
	var head []float64
	for left := t.Len(); left > 0; {
		n := min(chunk, left)
		if _, err := io.ReadFull(r, data[:n*size]); err != nil {
			return Stats{}, nil, oserr.NoEOF(err)
		}
		decode(t.Dtype, values[:n], data)
		s.Add(values[:n])
		if len(head) < first {
			head = append(head, values[:min(n, first-len(head))]...)
		}
		left -= n
	}
	return s.Stats(), head, nil
}
