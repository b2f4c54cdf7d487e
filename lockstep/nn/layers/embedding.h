// Embedding: rows of a table by index.
#pragma once

#include <string>

#include "lockstep/nn/initializer.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/regularizer.h"

namespace lockstep {

struct EmbeddingOptions {
  std::int64_t input_dim = 0;   // rows: indices are in [0, input_dim)
  std::int64_t output_dim = 0;  // of each row
  Initializer embeddings_initializer = RandomUniform();
  Regularizer embeddings_regularizer = {};
  std::string name = "";
};

// (N, …) of integers → (N, …, output_dim). Variable: embeddings (input_dim, output_dim).
struct Embedding : Layer {
  explicit Embedding(EmbeddingOptions options);
  Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options = {});
};

}  // namespace lockstep
