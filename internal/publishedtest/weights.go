package publishedtest

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Components declares the components with weights of a model folder.
func Components(folder string) ([]component.Component, error) {
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		return nil, err
	}
	x, err := index.Read(fsys)
	if err != nil {
		return nil, err
	}
	d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
	if err != nil {
		return nil, err
	}
	return d.Components, nil
}

// WriteWeights writes random weights for the configs in a model folder, in bfloat16.
func WriteWeights(folder string) error {
	components, err := Components(folder)
	if err != nil {
		return err
	}
	random := newNormals()
	for _, c := range components {
		var list []*checkpoint.Array
		for _, p := range nn.Parameters(c.Model) {
			list = append(list, random.tensor(p))
		}
		name := "model.safetensors"
		if c.Class.Library == "diffusers" {
			name = "diffusion_pytorch_model.safetensors"
		}
		if err := checkpoint.WriteFile(filepath.Join(folder, c.Dir, name), list, nil); err != nil {
			return err
		}
	}
	return nil
}

// normals are random numbers, which are used again and again: the largest tensors are embeddings of
// whole vocabularies.
type normals []float32

func newNormals() normals {
	r := rand.New(rand.NewPCG(1, 2))
	n := make(normals, 1<<16-15) // with no common factor with usual sizes
	for i := range n {
		n[i] = float32(r.NormFloat64())
	}
	return n
}

// tensor returns a parameter with random values.
func (n normals) tensor(p nn.Parameter) *checkpoint.Array {
	size, deviation, mean := modeltest.Spread(p)
	block := make([]byte, 0, 2*min(size, len(n)))
	for _, x := range n[:min(size, len(n))] {
		bits := math.Float32bits(float32(mean + deviation*float64(x)))
		block = append(block, byte(bits>>16), byte(bits>>24))
	}
	data := slices.Repeat(block, (size+len(n)-1)/len(n))[:2*size]
	return &checkpoint.Array{Name: p.Name, Dtype: checkpoint.BF16, Shape: p.Stored(), Data: data}
}
