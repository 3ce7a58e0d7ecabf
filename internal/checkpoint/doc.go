// Package checkpoint reads and writes the files of models and of tensors.
//
// A [Folder] is where the files of a model come from: a folder on disk or one that
// is embedded in the program. [ReadJSON] reads its configs. [OpenCheckpoint] opens
// the safetensors files of one of its components, in shards or not: it checks the
// header of each ([ParseHeader]) and names the open descriptor ([File.Path]), so
// that what MLX then loads is what was checked. The bytes of the tensors do not
// pass through this package on that way.
//
// A tensor is one of two things here. A [Tensor] says where a file has one, of what
// dtype and shape, and by which forms it becomes what diffusers has. An [Array] is
// one with its elements, in the host's memory. A [Reader] reads the elements of a
// checkpoint's tensors, a part at a time. An [ArrayFile] is a file that carries
// arrays between programs, in the format of safetensors or NumPy's .npy and .npz; a
// [Reference] names one array of such a file. [WriteFile] writes arrays, [Create] a
// safetensors file whose elements come one tensor after the other. [Stats] sum
// elements up.
//
// It does not use MLX. What dtypes are there is nn.DtypeOf.
package checkpoint
