// Batch norm's second sweep with ReLU and max pooling behind it.
#pragma once

#include "lockstep/kernels/cuda/batch_norm.cuh"
#include "lockstep/kernels/cuda/pool.cuh"

namespace lockstep {

// What won each window, for the gradient: its place there, and its x.
template <class T>
struct Winners {
  std::uint8_t* places;
  T* x;
};

// For windows that pools_with_norm; the grid is that of full packs. All lies on their boundaries.
template <class T>
void normalise_and_pool(const PoolShape& pool, const ColumnGrid& grid, const Normalisation<T>& n,
                        const Winners<T>& winners, cudaStream_t stream);

}  // namespace lockstep
