// Batch norm's second pass, fused with ReLU and max pooling.
#pragma once

#include "lockstep/kernels/cuda/norm/batch_norm.cuh"
#include "lockstep/kernels/cuda/pool/pool.cuh"

namespace lockstep {

// The largest element of each window, for the gradient: its index in the window, and its x.
template <class T>
struct Winners {
  std::uint8_t* places;
  T* x;
};

// For windows that pools_with_norm accepts; the grid is that of full vectors, and all values must
// be aligned to them.
template <class T>
void normalise_and_pool(const PoolShape& pool, const ColumnGrid& grid, const Normalisation<T>& n,
                        const Winners<T>& winners, cudaStream_t stream);

}  // namespace lockstep
