// Package checkpoint reads and writes the files of models and of tensors.
//
// A [Folder] contains the files of a model, on disk or embedded in the program.
// [ReadJSON] reads its configs. [OpenCheckpoint] opens the safetensors files of a
// component, in shards or not. It validates each header ([ParseHeader]) and names
// the open descriptor ([File.Path]), so that MLX loads the file that was
// validated. The elements of the tensors then do not pass through this package.
//
// There are two types for tensors. A [Tensor] describes a tensor in a file: its
// place, dtype and shape, and the transforms that lead to diffusers' layout. An
// [Array] has its elements in the host's memory. [Checkpoint.Parts] reads the elements
// of a tensor, a part at a time. An [ArrayFile] is a file for exchange
// with other programs, in the safetensors format or NumPy's .npy and .npz; a
// [Reference] names an array in such a file. [WriteFile] writes arrays. [Create]
// writes a safetensors file tensor by tensor. [Stats] are statistics of elements.
//
// This package does not use MLX. nn.DtypeOf maps its dtypes to MLX's.
package checkpoint
