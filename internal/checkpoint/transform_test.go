package checkpoint

import (
	"slices"
	"testing"
)

func TestSpans(t *testing.T) {
	tensor := Tensor{Name: "x", Dtype: "F32", Shape: []int{6, 2}, Begin: 100, End: 148}
	in := func(transforms ...Transform) Tensor {
		x := tensor
		for _, f := range transforms {
			var err error
			if x, err = x.Apply(f); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	rows := func(from, to int) Transform {
		return Transform{Op: TransformRows, From: from, To: to}
	}
	swap := Transform{Op: TransformSwap}
	for _, test := range []struct {
		tensor Tensor
		want   []span
	}{
		{tensor, []span{{100, 148}}},
		{in(rows(1, 3)), []span{{108, 124}}},
		{in(swap), []span{{124, 148}, {100, 124}}},
		{in(swap, rows(2, 5)), []span{{140, 148}, {100, 116}}},
		{in(rows(2, 6), swap), []span{{132, 148}, {116, 132}}},
		{in(swap, swap), []span{{100, 124}, {124, 148}}},
		{Tensor{Dtype: "F32", Begin: 4, End: 8}, []span{{4, 8}}},
	} {
		if got := spans(test.tensor); !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, expected %v", test.tensor.Transforms, got, test.want)
		}
	}
}

func TestChannelsFirst(t *testing.T) {
	x := Tensor{Name: "x", Dtype: "F32", Shape: []int{2, 3, 1, 2}, Begin: 0, End: 48}
	x, err := x.Apply(Transform{Op: TransformChannelsFirst})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := channelsFirst(x, []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}),
		[]float64{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}; !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
