// Runs kernels on a CPU as a GPU might: the threads of a block are fibers, and where threads wait for
// others, at a barrier or a shuffle, chance decides which one goes on. The seed of a launch repeats it.
// What a GPU may get wrong without an error ends the program here. A test adds the kernels and call.
#include <sanitizer/common_interface_defs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

const int MOST_THREADS = 1024, LANES_OF_WARP = 32, MOST_SHARED = 32768; // of any Apple chip
const size_t STACK = 64 << 10;

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fault(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fputs("fault: ", stderr);
  vfprintf(stderr, format, args);
  fputs("\n", stderr);
  _Exit(1);
}

static unsigned long long chance;

static int below(int n) { // xorshift64*
  chance ^= chance >> 12, chance ^= chance << 25, chance ^= chance >> 27;
  return static_cast<int>((chance * 2685821657736338717ull >> 33) % n);
}

// A Fiber is a thread of the block that runs, and the last one is the program itself.
struct Fiber {
  ucontext_t context;
  const void* stack;
  size_t stack_size;
  int mask; // of its shuffle
  float value, received;
};

static Fiber fibers[MOST_THREADS + 1];
static Fiber *const program = fibers + MOST_THREADS, *running = program;
static int threads_of_block, ended, ready[MOST_THREADS], n_ready;
static int at_barrier, at_shuffle[MOST_THREADS / LANES_OF_WARP];
static const char* barrier_file;
static int barrier_line;
static long epoch, block_epoch; // the number of barriers so far, and at the start of the block
static int shared_bytes;

static void switch_to(Fiber* next) {
  void* fake;
  Fiber* from = running;
  running = next;
  __sanitizer_start_switch_fiber(&fake, next->stack, next->stack_size);
  swapcontext(&from->context, &next->context);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

static void resume_another() {
  if (n_ready == 0) return switch_to(program);
  const int i = below(n_ready), tid = ready[i];
  ready[i] = ready[--n_ready];
  if (fibers + tid != running) switch_to(fibers + tid);
}

static int tid_of_running() { return static_cast<int>(running - fibers); }

static void barrier(const char* file, int line) {
  if (at_barrier == 0) barrier_file = file, barrier_line = line;
  if (barrier_line != line || strcmp(barrier_file, file) != 0)
    fault("threads wait at two barriers: %s:%d and %s:%d", barrier_file, barrier_line, file, line);
  if (++at_barrier == threads_of_block) {
    at_barrier = 0;
    epoch++;
    for (int i = 0; i < threads_of_block; i++) ready[n_ready++] = i;
  }
  resume_another();
}

// Returns x of the thread whose lane differs by the bits of mask.
static float warp_xor(float x, int mask) {
  const int warp = tid_of_running() / LANES_OF_WARP, first = warp * LANES_OF_WARP;
  if (first + LANES_OF_WARP > threads_of_block) fault("a shuffle in a simdgroup of fewer than 32 threads");
  if (mask < 1 || mask >= LANES_OF_WARP) fault("a shuffle with the mask %d", mask);
  running->value = x;
  running->mask = mask;
  if (++at_shuffle[warp] == LANES_OF_WARP) {
    at_shuffle[warp] = 0;
    for (int lane = 0; lane < LANES_OF_WARP; lane++) {
      Fiber& f = fibers[first + lane];
      if (f.mask != mask) fault("lanes of a shuffle with the masks %d and %d", f.mask, mask);
      f.received = fibers[first + (lane ^ mask)].value;
      ready[n_ready++] = first + lane;
    }
  }
  Fiber* f = running;
  resume_another();
  return f->received;
}

// A Cell is an element of threadgroup memory, which knows who used it since the last barrier.
template <typename T>
struct Cell {
  T value;
  long written = -1, read = -1; // epochs
  int writer, reader;           // threads, -1 for several
  const char* name;

  Cell() = default;
  Cell(const Cell&) = delete;
  void operator=(const Cell&) = delete;
  void ordered(long used, int user) const {
    if (used == epoch && user != tid_of_running())
      fault("a race: threads %d and %d use an element of %s without a barrier between", tid_of_running(), user, name);
  }
  operator T() {
    if (written < block_epoch) fault("thread %d reads an element of %s that no thread has written", tid_of_running(), name);
    ordered(written, writer);
    reader = read == epoch && reader != tid_of_running() ? -1 : tid_of_running();
    read = epoch;
    return value;
  }
  void operator=(T x) {
    ordered(written, writer);
    ordered(read, reader);
    value = x, written = epoch, writer = tid_of_running();
  }
};

// Shared is an array in threadgroup memory.
template <typename T>
struct Shared {
  const char* name;
  int size;
  Cell<T>* cells;
  long entered = -1;

  Shared(const char* name, int size) : name(name), size(size), cells(new Cell<T>[size]) {
    for (int i = 0; i < size; i++) cells[i].name = name;
  }
  void enter() { // every thread of a block does
    if (entered == block_epoch) return;
    entered = block_epoch;
    shared_bytes += size * sizeof(T);
    if (shared_bytes > MOST_SHARED) fault("%d bytes of threadgroup memory with %s, at most %d", shared_bytes, name, MOST_SHARED);
  }
  Cell<T>& operator[](long i) {
    if (i < 0 || i >= size) fault("element %ld of %s, which has %d", i, name, size);
    return cells[i];
  }
};

// A Launch is a call of a kernel.
struct Launch {
  int variant, blocks, threads, seed, inputs, outputs, ints, floats;
};

static Launch launch;
static void** buffers; // exactly as large as the arrays
static long* sizes;
static int *ints, block_of_running;
static float* floats;

static void call(int variant, void** buffers, const int* ints, const float* floats, int block, int tid, int threads);

static void start() {
  const void* stack;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &size);
  if (!program->stack) program->stack = stack, program->stack_size = size; // which started the first
  call(launch.variant, buffers, ints, floats, block_of_running, tid_of_running(), launch.threads);
  ended++;
  resume_another();
}

static void run_block(int block) {
  block_of_running = block;
  threads_of_block = launch.threads;
  ended = n_ready = shared_bytes = 0;
  block_epoch = ++epoch;
  for (int i = 0; i < launch.threads; i++) {
    Fiber& f = fibers[i];
    if (!f.stack) f.stack = malloc(STACK), f.stack_size = STACK;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = const_cast<void*>(f.stack);
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
    ready[n_ready++] = i;
  }
  resume_another();
  if (ended == launch.threads) return;
  int shuffling = 0;
  for (int n : at_shuffle) shuffling += n;
  fault("%d of %d threads wait at a barrier and %d at a shuffle, %d have ended", at_barrier, launch.threads, shuffling, ended);
}

static bool take(void* to, size_t size) { return fread(to, 1, size, stdin) == size; }

int main() {
  while (take(&launch, sizeof launch)) {
    chance = 0x9e3779b97f4a7c15ull * (launch.seed + 1);
    const int n = launch.inputs + launch.outputs;
    buffers = new void*[n];
    sizes = new long[n];
    ints = new int[launch.ints];
    floats = new float[launch.floats];
    bool ok = take(sizes, n * sizeof(long)) && take(ints, launch.ints * sizeof(int)) && take(floats, launch.floats * sizeof(float));
    for (int i = 0; ok && i < n; i++) {
      if (posix_memalign(buffers + i, 256, sizes[i]) != 0) fault("no memory");
      memset(buffers[i], 0xff, sizes[i]); // NaN, where a kernel writes nothing
      ok = i >= launch.inputs || take(buffers[i], sizes[i]);
    }
    if (!ok || launch.threads < 1 || launch.threads > MOST_THREADS) fault("a broken launch");
    int* order = new int[launch.blocks];
    for (int i = 0; i < launch.blocks; i++) {
      const int j = below(i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    for (int i = 0; i < launch.blocks; i++) run_block(order[i]);
    for (int i = launch.inputs; i < n; i++) fwrite(buffers[i], 1, sizes[i], stdout);
    fflush(stdout);
    for (int i = 0; i < n; i++) free(buffers[i]);
    delete[] buffers, delete[] sizes, delete[] ints, delete[] floats, delete[] order;
  }
}
