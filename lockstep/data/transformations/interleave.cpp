// The elements of the data sets that a function makes from elements, in turn. Their spec is that of
// the first data set, which is opened when the spec is first needed.
#include <mutex>

#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/transformations.h"
#include "lockstep/data/transformations/interleave_cursor.h"

namespace lockstep {
namespace {

class InterleaveNode final : public DatasetNode {
 public:
  InterleaveNode(NodePtr input, DatasetFunction function, InterleaveOptions options)
      : input_(std::move(input)), function_(std::move(function)), options_(options) {}

  std::string name() const override { return "interleave"; }
  // The first data set represents all of them.
  std::vector<NodePtr> inputs() const override {
    const NodePtr& model = interleaving()->model;
    return model == nullptr ? std::vector{input_} : std::vector{input_, model};
  }
  std::vector<ElementSpec> element_spec() const override { return interleaving()->spec; }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input <= 0 && input != kUnknown) return input;
    const NodePtr& model = interleaving()->model;
    return model != nullptr && model->cardinality() == kInfinite ? kInfinite : kUnknown;
  }
  std::string signature() const override {
    const NodePtr& model = interleaving()->model;
    return fmt::format("{}.interleave(cycle {}, block {}: {})", input_->signature(), options_.cycle,
                       options_.block, model == nullptr ? "nothing" : model->signature());
  }
  ShareRules share_rules() const override { return {.any_batch = false, .opens = true}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<InterleaveCursor>(input_, context, interleaving(),
                                              context.runtime->stage(*this));
  }

 private:
  std::shared_ptr<const Interleaving> interleaving() const {
    std::lock_guard lock(mutex_);
    if (interleaving_ != nullptr) return interleaving_;
    auto made = std::make_shared<Interleaving>(
        Interleaving{.function = function_, .options = options_, .spec = {}, .model = nullptr});
    const Context context{.epoch = 0,
                          .shard = 0,
                          .shards = 1,
                          .runtime = std::make_shared<Runtime>(Budget{}, host(), nullptr)};
    if (const std::optional<Element> first = Input(input_, context).next()) {
      try {
        made->model = function_(*first).node();
        made->spec = made->model->element_spec();
      } catch (...) {
        rethrow_at(name(), first->sample);
      }
    }
    interleaving_ = std::move(made);
    return interleaving_;
  }

  NodePtr input_;
  DatasetFunction function_;
  InterleaveOptions options_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Interleaving> interleaving_;
};

}  // namespace

NodePtr make_interleave(NodePtr input, DatasetFunction function, InterleaveOptions options) {
  require(function != nullptr, "[interleave] the function is null");
  require(options.cycle > 0, "[interleave] .cycle must be at least 1, not {}", options.cycle);
  require(options.block > 0, "[interleave] .block must be at least 1, not {}", options.block);
  require(options.parallel > 0 || options.parallel == AUTOTUNE,
          "[interleave] .parallel must be at least 1 or AUTOTUNE, not {}", options.parallel);
  return std::make_shared<InterleaveNode>(std::move(input), std::move(function), options);
}

}  // namespace lockstep
