package tensors

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/gomflux/gomflux/internal/oserr"
)

// A Float is a number whose JSON may also be "NaN", "Infinity" or "-Infinity".
type Float float64

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
		return fmt.Errorf("%q is no number", word)
	}
	return nil
}

// Stats sum a tensor up. Min, Max, Mean and Std are of its finite elements, and
// NaN where there are none; Std is that of the population, as NumPy's is.
type Stats struct {
	Min  Float `json:"min"`
	Max  Float `json:"max"`
	Mean Float `json:"mean"`
	Std  Float `json:"std"`
	NaN  int   `json:"nan"`
	Inf  int   `json:"inf"`
}

// Finite says whether every element is.
func (s Stats) Finite() bool { return s.NaN+s.Inf == 0 }

// Range is the text "min to max", with what is not finite.
func (s Stats) Range() string {
	text := fmt.Sprintf("%.6g to %.6g", float64(s.Min), float64(s.Max))
	if math.IsNaN(float64(s.Min)) {
		text = "nothing finite"
	}
	if s.NaN > 0 {
		text += fmt.Sprintf(", %d NaN", s.NaN)
	}
	if s.Inf > 0 {
		text += fmt.Sprintf(", %d infinite", s.Inf)
	}
	return text
}

// chunk is how many elements are summed up at a time.
const chunk = 1 << 14

// A summer makes statistics of elements that come in parts. Mean and square
// sum of the parts are joined as Chan, Golub and LeVeque do.
type summer struct {
	stats    Stats
	n        float64 // finite elements
	mean, m2 float64
}

func newSummer() *summer {
	return &summer{stats: Stats{Min: Float(math.Inf(1)), Max: Float(math.Inf(-1))}}
}

func (s *summer) add(values []float64) {
	var n, sum float64
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			s.stats.NaN++
		case math.IsInf(v, 0):
			s.stats.Inf++
		default:
			n++
			sum += v
			s.stats.Min, s.stats.Max = min(s.stats.Min, Float(v)), max(s.stats.Max, Float(v))
		}
	}
	if n == 0 {
		return
	}
	mean, m2 := sum/n, 0.0
	for _, v := range values {
		if d := v - mean; !math.IsNaN(d) && !math.IsInf(d, 0) {
			m2 += d * d
		}
	}
	if s.n == 0 {
		s.n, s.mean, s.m2 = n, mean, m2
		return
	}
	d, all := mean-s.mean, s.n+n
	s.m2 += m2 + d*d*s.n*n/all
	s.mean += d * n / all
	s.n = all
}

func (s *summer) result() Stats {
	if s.n == 0 {
		nan := Float(math.NaN())
		s.stats.Min, s.stats.Max, s.stats.Mean, s.stats.Std = nan, nan, nan, nan
		return s.stats
	}
	s.stats.Mean, s.stats.Std = Float(s.mean), Float(math.Sqrt(s.m2/s.n))
	return s.stats
}

// Stats are those of all elements.
func (t *Tensor) Stats() Stats {
	s := newSummer()
	size, values := t.Dtype.Size(), make([]float64, min(chunk, t.Len()))
	for data := t.Data; len(data) > 0; {
		n := min(chunk, len(data)/size)
		decode(t.Dtype, values[:n], data)
		s.add(values[:n])
		data = data[n*size:]
	}
	return s.result()
}

// First are the first n elements, or all if there are fewer.
func (t *Tensor) First(n int) []float64 {
	out := make([]float64, min(n, t.Len()))
	decode(t.Dtype, out, t.Data)
	return out
}

// summarize reads the elements of a tensor once, without keeping them.
func summarize(r io.Reader, i Info, first int) (Stats, []float64, error) {
	s := newSummer()
	size := i.Dtype.Size()
	data, values := make([]byte, chunk*size), make([]float64, chunk)
	var head []float64
	for left := i.Len(); left > 0; {
		n := min(chunk, left)
		if _, err := io.ReadFull(r, data[:n*size]); err != nil {
			return Stats{}, nil, oserr.NoEOF(err)
		}
		decode(i.Dtype, values[:n], data)
		s.add(values[:n])
		if len(head) < first {
			head = append(head, values[:min(n, first-len(head))]...)
		}
		left -= n
	}
	return s.result(), head, nil
}
