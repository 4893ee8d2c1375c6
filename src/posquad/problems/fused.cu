// Sums over the rows of X that need two products with X, with one read of X.
//
//     Z = X V,   W = weigh(Z, y) row by row,   G = X'W
//
// A cluster of blocks takes 16 rows at a time, each block a range of columns. Rows are copied into
// shared memory a few steps ahead and stay there for both products:
//
//     project   each warp multiplies its columns of X with its rows of V (held in registers)
//     send      the sum over warps goes to every block of the cluster
//     weigh     W for these rows
//     collect   each warp adds X'W for its columns (held in registers until the end)
//
// `collect` of one step runs while the blocks exchange Z of the next. All sums have a fixed order.
//
// Both precisions use m16n8k8 products of the tensor cores. A double goes in as it is; a float is
// the sum of two numbers of 11 bits, and three of the four products of such sums are kept.
//
// Written in front by the caller: F64, LINE, PADDED (columns of a factor, with zeros), COLUMNS (of
// X, per warp), CLUSTER (blocks), STAGES (steps in shared memory, at least 2), RESIDENT (blocks per
// multiprocessor).

typedef unsigned int u32;
typedef unsigned long long u64;

#if F64
typedef double T;
typedef double Part;  // what is multiplied
struct alignas(16) Pack { T at[2]; };
#else
typedef float T;
struct Part { u32 high, low; };
struct alignas(16) Pack { T at[4]; };
#endif

constexpr int ROWS = 16, WARPS = 8, THREADS = 32 * WARPS;
constexpr int WIDTH = COLUMNS * WARPS;               // columns of a block
constexpr int E = sizeof(Pack) / sizeof(T);          // numbers in 16 bytes
constexpr int IN = LINE ? 2 * PADDED : PADDED;       // columns of V and Z
constexpr int OUT = LINE ? 4 * PADDED : PADDED;      // columns of W and G
constexpr int X_STRIDE = WIDTH + 32 / (int)sizeof(T);  // rows begin in different banks
constexpr int W_STRIDE = F64 ? (OUT + 11) / 16 * 16 + 4 : (OUT + 23) / 32 * 32 + 8;

__device__ __forceinline__ u32 address(const void* place) {
  return (u32)__cvta_generic_to_shared(place);
}

#if F64
__device__ __forceinline__ Part part(T x) { return x; }

template <int K>
__device__ __forceinline__ void multiply(T c[4], const Part (&a)[K][4], const Part (&b)[K][2]) {
  #pragma unroll
  for (int k = 0; k < K; ++k)
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[k][0]), "d"(a[k][1]), "d"(a[k][2]), "d"(a[k][3]), "d"(b[k][0]), "d"(b[k][1]));
}
#else
__device__ __forceinline__ Part part(T x) {
  const u32 high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;  // rounded to 11 bits
  return {high, __float_as_uint(x - __uint_as_float(high))};
}

template <u32 Part::*A, u32 Part::*B, int K>
__device__ __forceinline__ void add_products(
    T c[4], const Part (&a)[K][4], const Part (&b)[K][2]) {
  #pragma unroll
  for (int k = 0; k < K; ++k)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[k][0].*A), "r"(a[k][1].*A), "r"(a[k][2].*A), "r"(a[k][3].*A),
          "r"(b[k][0].*B), "r"(b[k][1].*B));
}

template <int K>
__device__ __forceinline__ void multiply(T c[4], const Part (&a)[K][4], const Part (&b)[K][2]) {
  T sum[4] = {0, 0, 0, 0};  // the tensor cores truncate, so only short sums are left to them
  add_products<&Part::low, &Part::high>(sum, a, b);
  add_products<&Part::high, &Part::low>(sum, a, b);
  add_products<&Part::high, &Part::high>(sum, a, b);
  #pragma unroll
  for (int i = 0; i < 4; ++i) c[i] += sum[i];
}
#endif

// X[n, d], V[d, IN], y[n], scale[n] or null, errors[LINE ? 3 : 1, n], G[clusters, d, OUT].
extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT) sweep(
    const T* __restrict__ X, const T* __restrict__ V, const T* __restrict__ y,
    const T* __restrict__ scale, T* __restrict__ errors, T* __restrict__ G, int n, int d) {
  extern __shared__ __align__(128) unsigned char shared[];
  T* x_rows = (T*)shared;                              // [STAGES][ROWS][X_STRIDE]
  T* by_warp = x_rows + STAGES * ROWS * X_STRIDE;      // [WARPS][ROWS][IN]
  T* by_block = by_warp + WARPS * ROWS * IN;           // [2][CLUSTER][ROWS][IN]
  T* weighed = by_block + 2 * CLUSTER * ROWS * IN;     // [2][ROWS][W_STRIDE]
  u64* arrived = (u64*)(weighed + 2 * ROWS * W_STRIDE);  // [STAGES]

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, member = lane % 4;       // of the tensor cores' fragments
  // Rows 0, 2, 1, 3, ...: four lanes of one row and four of the next use different banks.
  const int row_of_group = (group & 4) | ((group & 1) << 1) | ((group & 2) >> 1);
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  const int clusters = gridDim.x / CLUSTER, steps = (n + ROWS - 1) / ROWS;
  const int first = rank * WIDTH, own = first + warp * COLUMNS;  // columns of the block, the warp

  for (int i = thread; i < STAGES * ROWS * X_STRIDE; i += THREADS) x_rows[i] = 0;
  if (thread == 0) {
    for (int s = 0; s < STAGES; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(arrived + s)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
#if CLUSTER > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif

  auto fetch = [&](int step, int stage) {  // begin to copy rows into a stage
    if (warp) return;
    const int count = min(ROWS, n - step * ROWS), bytes = min(WIDTH, d - first) * (int)sizeof(T);
    const u32 barrier = address(arrived + stage);
    if (lane == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :: "r"(barrier), "r"(count * bytes) : "memory");
    __syncwarp();
    if (lane < count)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
          :: "r"(address(x_rows + (stage * ROWS + lane) * X_STRIDE)),
             "l"(X + ((long long)step * ROWS + lane) * d + first), "r"(bytes), "r"(barrier)
          : "memory");
  };

  Part v[COLUMNS / (4 * E)][IN / 8][E / 2][2];
  #pragma unroll
  for (int q = 0; q < COLUMNS / (4 * E); ++q)
    #pragma unroll
    for (int m = 0; m < IN / 8; ++m)
      #pragma unroll
      for (int j = 0; j < E / 2; ++j)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = own + q * 4 * E + E * member + 2 * j + h;
          v[q][m][j][h] = part(column < d ? V[(long long)column * IN + m * 8 + group] : T(0));
        }
  T sums[COLUMNS / (8 * E)][E][OUT / 16][4];
  #pragma unroll
  for (int i = 0; i < (int)(sizeof(sums) / sizeof(T)); ++i) ((T*)sums)[i] = 0;

  auto project = [&](int turn) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
        :: "r"(address(arrived + turn % STAGES)), "r"((turn / STAGES) & 1) : "memory");
    const T* x = x_rows + (turn % STAGES * ROWS + row_of_group) * X_STRIDE + warp * COLUMNS;
    T z[IN / 8][4] = {};
    #pragma unroll
    for (int q = 0; q < COLUMNS / (4 * E); ++q) {
      const Pack upper = *(const Pack*)(x + q * 4 * E + E * member);
      const Pack lower = *(const Pack*)(x + 8 * X_STRIDE + q * 4 * E + E * member);
      Part a[E / 2][4];
      #pragma unroll
      for (int e = 0; e < E; ++e) {
        a[e / 2][e % 2 * 2] = part(upper.at[e]);
        a[e / 2][e % 2 * 2 + 1] = part(lower.at[e]);
      }
      #pragma unroll
      for (int m = 0; m < IN / 8; ++m) multiply(z[m], a, v[q][m]);
    }
    #pragma unroll
    for (int m = 0; m < IN / 8; ++m)
      #pragma unroll
      for (int h = 0; h < 4; ++h)
        by_warp[(warp * ROWS + row_of_group + h / 2 * 8) * IN + m * 8 + 2 * member + h % 2] =
            z[m][h];
    __syncthreads();
  };

  auto send = [&](int turn) {
    T* z = by_block + (turn & 1) * CLUSTER * ROWS * IN;
    for (int i = thread; i < ROWS * IN; i += THREADS) {
      T sum = 0;
      #pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += by_warp[w * ROWS * IN + i];
#if CLUSTER == 1
      z[i] = sum;
#else
      #pragma unroll
      for (int to = 0; to < CLUSTER; ++to) {
        u32 place;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(place) : "r"(address(z + rank * ROWS * IN + i)), "r"(to));
#if F64
        asm volatile("st.shared::cluster.f64 [%0], %1;" :: "r"(place), "d"(sum) : "memory");
#else
        asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(place), "f"(sum) : "memory");
#endif
      }
#endif
    }
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  };

  // Threads by row and column of a factor.
  const int row = thread / PADDED, column = thread % PADDED;
  auto of_row = [&](const T* values, int step, T otherwise) {
    return row < ROWS && step * ROWS + row < n ? values[step * ROWS + row] : otherwise;
  };
  auto weigh = [&](int turn, int step, T response, T weight) {
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
    if (row < ROWS) {
      const T* from = by_block + ((turn & 1) * CLUSTER * ROWS + row) * IN + column;
      T z = 0, p = 0;
      #pragma unroll
      for (int block = 0; block < CLUSTER; ++block) {
        z += from[block * ROWS * IN];
        if (LINE) p += from[block * ROWS * IN + LINE * PADDED];
      }
      T s0 = z * z, s1 = z * p, s2 = p * p;
      #pragma unroll
      for (int offset = PADDED / 2; offset; offset /= 2) {
        s0 += __shfl_xor_sync(0xffffffffu, s0, offset);
        if (LINE) s1 += __shfl_xor_sync(0xffffffffu, s1, offset);
        if (LINE) s2 += __shfl_xor_sync(0xffffffffu, s2, offset);
      }
      const bool inside = step * ROWS + row < n;  // rows past the end count nothing
      s0 = inside ? s0 - response : T(0), s1 = inside ? 2 * s1 : T(0), s2 = inside ? s2 : T(0);
      if (inside && rank == 0 && column == 0) {
        const long long i = (long long)step * ROWS + row;
        errors[i] = s0;
        if (LINE) errors[n + i] = s1, errors[2LL * n + i] = s2;
      }
      s0 *= weight, s1 *= weight, s2 *= weight;
      T* w = weighed + ((turn & 1) * ROWS + row) * W_STRIDE + column;
      w[0] = s0 * z;
      if (LINE) {
        w[PADDED] = s1 * z + s0 * p;
        w[2 * PADDED] = s2 * z + s1 * p;
        w[3 * PADDED] = s2 * p;
      }
    }
    __syncthreads();
  };

  auto collect = [&](int turn) {
    const T* x = x_rows + (turn % STAGES * ROWS + member) * X_STRIDE + warp * COLUMNS;
    const T* w = weighed + ((turn & 1) * ROWS + member) * W_STRIDE + group;
    Part a[OUT / 16][ROWS / 8][4];
    #pragma unroll
    for (int m = 0; m < OUT / 16; ++m)
      #pragma unroll
      for (int k = 0; k < ROWS / 8; ++k)
        #pragma unroll
        for (int h = 0; h < 4; ++h)
          a[m][k][h] = part(w[(8 * k + h / 2 * 4) * W_STRIDE + m * 16 + h % 2 * 8]);
    #pragma unroll
    for (int q = 0; q < COLUMNS / (8 * E); ++q) {
      Pack rows[ROWS / 4];
      #pragma unroll
      for (int k = 0; k < ROWS / 4; ++k)
        rows[k] = *(const Pack*)(x + 4 * k * X_STRIDE + q * 8 * E + E * group);
      #pragma unroll
      for (int e = 0; e < E; ++e) {
        Part b[ROWS / 8][2];
        #pragma unroll
        for (int k = 0; k < ROWS / 4; ++k) b[k / 2][k % 2] = part(rows[k].at[e]);
        #pragma unroll
        for (int m = 0; m < OUT / 16; ++m) multiply(sums[q][e][m], a[m], b);
      }
    }
  };

  for (int s = 0; s < STAGES; ++s)
    if (cluster + s * clusters < steps) fetch(cluster + s * clusters, s);
  auto weight_of = [&](int step) { return scale ? of_row(scale, step, 0) : T(1); };
  T response = of_row(y, cluster, 0), weight = weight_of(cluster);
  if (cluster < steps) {
    project(0);
    send(0);
    weigh(0, cluster, response, weight);
  }
  for (int step = cluster, turn = 0; step < steps; step += clusters, ++turn) {
    const int next = step + clusters;
    if (next < steps) {
      response = of_row(y, next, 0), weight = weight_of(next);
      project(turn + 1);
      send(turn + 1);
    }
    collect(turn);
    if (next < steps) weigh(turn + 1, next, response, weight);
    // All warps have left these rows, so that their place can take new ones.
    if (step + STAGES * clusters < steps) fetch(step + STAGES * clusters, turn % STAGES);
  }

  #pragma unroll
  for (int q = 0; q < COLUMNS / (8 * E); ++q)
    #pragma unroll
    for (int e = 0; e < E; ++e)
      #pragma unroll
      for (int m = 0; m < OUT / 16; ++m)
        #pragma unroll
        for (int h = 0; h < 4; ++h) {
          const int at = own + q * 8 * E + E * (2 * member + h % 2) + e;
          if (at < d)
            G[((long long)cluster * d + at) * OUT + m * 16 + group + h / 2 * 8] = sums[q][e][m][h];
        }
}
