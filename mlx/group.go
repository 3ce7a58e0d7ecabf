package mlx

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// A Group is several processes, of one machine or several, that compute together. MLX connects
// them: over TCP (ring), RDMA over Thunderbolt (jaccl), or between the GPUs of one host and more
// (nccl). Every process of a group must call the same collectives in the same order, with arrays of
// the same shape and dtype. A collective has no deadline: if one process ends, the others wait for
// it, until somebody ends them.
type Group struct {
	handle  uintptr // of MLX's group; of the whole one for a pair
	backend string
	members []int // ranks in MLX's group
	at      int   // of this process in members

	received *int64 // of this group and those that it was split into
}

// GroupBackends are the backends of groups that the library has, by MLX's names for them.
func GroupBackends() []string {
	return slices.DeleteFunc([]string{"nccl", "ring", "jaccl"}, func(name string) bool { return !mlxc.DistributedIsAvailable(name) })
}

// JoinGroup connects this process with the others of its group, and waits for them. backend is a name
// of [GroupBackends]. Rank and addresses are in MLX's environment variables (MLX_RANK, MLX_HOSTFILE,
// ...). MLX connects each backend once in a process.
func JoinGroup(backend string) (*Group, error) {
	var handle uintptr
	err := Try(func() { check(mlxc.DistributedInit(&handle, true, backend)) })
	if err != nil {
		return nil, fmt.Errorf("join the group of processes by %s: %w", backend, err)
	}
	if backend == "ring" {
		watchSockets()
	}
	return &Group{handle: handle, backend: backend, members: sequence(int(mlxc.DistributedGroupSize(handle))),
		at: int(mlxc.DistributedGroupRank(handle)), received: new(int64)}, nil
}

// Rank is the number of this process in the group, from 0.
func (g *Group) Rank() int { return g.at }

// Size is the number of processes in the group.
func (g *Group) Size() int { return len(g.members) }

// Backend is MLX's name of what connects the group.
func (g *Group) Backend() string { return g.backend }

// Split returns the group of those members that are in one list of parts with this process, in the
// order of that list. parts has every rank of g once, and is the same in all processes, which all
// call Split at the same time. MLX splits groups only with nccl. Otherwise the lists must have all
// members or two, with ring two neighbours, of whom the first and the last are two as well.
func (g *Group) Split(parts [][]int) *Group {
	colour := slices.IndexFunc(parts, func(part []int) bool { return slices.Contains(part, g.at) })
	if colour < 0 {
		raise("split of a group: rank %d is in none of %v", g.at, parts)
	}
	part := parts[colour]
	if slices.Equal(part, sequence(g.Size())) {
		return g
	}
	sub := &Group{handle: g.handle, backend: g.backend, at: slices.Index(part, g.at), received: g.received}
	if g.backend == "nccl" {
		var handle uintptr
		check(mlxc.DistributedGroupSplit(&handle, g.handle, int32(colour), int32(sub.at)))
		sub.handle, sub.members = handle, sequence(len(part))
		return sub
	}
	if len(part) > 2 {
		raise("split of a group of %d by %s: it can be split into pairs, not into %v", g.Size(), g.backend, parts)
	}
	for _, rank := range part {
		sub.members = append(sub.members, g.members[rank])
	}
	return sub
}

// pair reports whether g is two of MLX's group: they have no collectives, only messages.
func (g *Group) pair() bool {
	return len(g.members) == 2 && int(mlxc.DistributedGroupSize(g.handle)) > 2
}

// Traceable reports whether a compiled function can have collectives of g, which may be nil. Messages of a
// pair are queued when they are called, so they cannot be traced.
func (g *Group) Traceable() bool { return g == nil || !g.pair() }

// Received is the number of bytes that this process has received in collectives, of groups that g was split
// into too; 0 for nil. A compiled function counts when it is traced.
func (g *Group) Received() int64 {
	if g == nil {
		return 0
	}
	return *g.received
}

// stream is where the backend computes.
func (g *Group) stream() uintptr {
	if g.backend == "nccl" {
		return stream
	}
	return streams[CPU]
}

// AllGather returns the arrays that the members pass, joined on their first axis in the order of the
// members: [n, ...] becomes [size*n, ...].
func (g *Group) AllGather(x *Array) *Array {
	if g.Size() == 1 {
		return x
	}
	*g.received += int64((g.Size() - 1) * x.Size() * x.Dtype().ItemSize())
	if !g.pair() {
		return result(func(r *uintptr) int32 { return mlxc.DistributedAllGather(r, x.h(), g.handle, g.stream()) })
	}
	both := [2]*Array{x, x}
	both[1-g.at] = g.exchange(x)
	return Concat(0, both[0], both[1])
}

// Broadcast returns the array that one member passes. Those of the others, of the same shape and dtype, do not
// matter: NCCL has no messages in MLX, so this is a collective, in which a link carries one array each way.
func (g *Group) Broadcast(x *Array, from int) *Array {
	if g.Size() == 1 {
		return x
	}
	n := x.Dim(0)
	return g.AllGather(x).Slice(0, from*n, (from+1)*n)
}

// Gather returns what each member passes, in the order of the members. Unlike arrays, these can have any
// length.
func (g *Group) Gather(data []byte) [][]byte {
	if g.Size() == 1 {
		return [][]byte{data}
	}
	sizes := g.AllGather(FromInt32([]int32{int32(len(data))}, 1)).Int32s()
	all, most := make([][]byte, g.Size()), int(slices.Max(sizes))
	if most == 0 {
		return all
	}
	padded := make([]byte, most)
	copy(padded, data)
	joined := g.AllGather(FromBytes(padded, Uint8)).Bytes()
	for i, size := range sizes {
		all[i] = joined[i*most:][:size]
	}
	return all
}

// AllSum returns the sum of the arrays that the members pass.
func (g *Group) AllSum(x *Array) *Array {
	if g.Size() == 1 {
		return x
	}
	*g.received += int64(2 * (g.Size() - 1) * x.Size() * x.Dtype().ItemSize() / g.Size())
	if g.pair() {
		return x.Add(g.exchange(x))
	}
	return result(func(r *uintptr) int32 { return mlxc.DistributedAllSum(r, x.h(), g.handle, g.stream()) })
}

// After returns the array, which is computed after another array. The members of a group compute their
// collectives in the same order only if each depends on the one before.
func (a *Array) After(other *Array) *Array {
	inputs, others, r := newVector([]*Array{a}), newVector([]*Array{other}), mlxc.VectorArrayNew()
	defer mlxc.VectorArrayFree(inputs)
	defer mlxc.VectorArrayFree(others)
	defer func() { mlxc.VectorArrayFree(r) }()
	check(mlxc.Depends(&r, inputs, others))
	return unpack(r)[0]
}

// exchange sends x to the other of a pair, and returns what that one sends. A message waits for its
// receiver, so the first sends first and the second receives first. A received array has no inputs, so
// only the order in which they are queued keeps them apart.
func (g *Group) exchange(x *Array) *Array {
	other, got := int32(g.members[1-g.at]), uintptr(0)
	receive := func() *Array {
		check(mlxc.DistributedRecvLike(&got, x.h(), other, g.handle, g.stream()))
		r := wrap(got)
		AsyncEval(r)
		return r
	}
	send := func() {
		var sent uintptr
		check(mlxc.DistributedSend(&sent, x.h(), other, g.handle, g.stream()))
		AsyncEval(wrap(sent))
	}
	if g.at == 0 {
		send()
		return receive()
	}
	r := receive()
	send()
	return r
}

// sequence is 0 to n-1.
func sequence(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
