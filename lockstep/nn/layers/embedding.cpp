#include "lockstep/nn/layers/embedding.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class EmbeddingLayer final : public LayerBase {
 public:
  explicit EmbeddingLayer(EmbeddingOptions options) : options_(std::move(options)) {
    require(options_.input_dim > 0 && options_.output_dim > 0,
            "[embedding] input_dim and output_dim must be above 0, got {} and {}",
            options_.input_dim, options_.output_dim);
  }
  std::string kind() const override { return "Embedding"; }

  void build(std::span<const ValueType> inputs) override {
    const DType dtype = only(inputs).dtype;
    require(!is_floating(dtype) && dtype != DType::Bool,
            "{}expects integer indices, got {}; cast the data to i32", where(), inputs[0].str());
    table_ = add_variable("embeddings", {options_.input_dim, options_.output_dim},
                          {.initializer = options_.embeddings_initializer,
                           .regularizer = options_.embeddings_regularizer});
  }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value indices = only(inputs);
    return gather(indices.graph().variable(table_), indices);
  }

 private:
  EmbeddingOptions options_;
  VariableRef table_;
};

}  // namespace

Embedding::Embedding(EmbeddingOptions options)
    : Layer(make_named_layer<EmbeddingLayer>(options.name, options)) {}

Embedding::Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options)
    : Embedding(
          with_argument("embedding", "input_dim", &EmbeddingOptions::input_dim, input_dim,
                        with_argument("embedding", "output_dim", &EmbeddingOptions::output_dim,
                                      output_dim, std::move(options)))) {}

}  // namespace lockstep
