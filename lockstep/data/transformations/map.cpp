// Applies a user's function to every element, but not to those that are skipped, also by a restore.
#include "lockstep/data/transformations/map_function.h"
#include "lockstep/data/transformations/parallel_map.h"

namespace lockstep {
namespace {

// One element after the other, on the consumer's thread.
class MapCursor final : public Cursor {
 public:
  MapCursor(NodePtr input, const Context& context, std::shared_ptr<const MappedFunction> function,
            Stage& stage)
      : input_(std::move(input), context), function_(std::move(function)), stage_(stage) {
    if (function_->writes()) {
      own_.emplace(function_->options().spec, 1, context.runtime->memory());
      placer_ = &*own_;
    }
  }

  std::optional<Element> next() override {
    const bool skips_errors = function_->options().on_error == OnError::Skip;
    for (;;) {
      const std::optional<Element> element = input_.next();
      if (!element) return std::nullopt;
      Element place = placer_ != nullptr ? placer_->place() : Element();
      try {
        return (*function_)(*element, std::move(place));
      } catch (const Error& error) {
        if (!skips_errors) throw;
        if (placer_ != nullptr) placer_->missing();
        input_.context().runtime->skipped(stage_, error.what());
      }
    }
  }
  std::int64_t skip(std::int64_t count) override {
    if (function_->options().on_error == OnError::Skip) return Cursor::skip(count);
    return input_.skip(count);
  }
  bool write_to(RowPlacer& placer) override {
    if (function_->writes()) placer_ = &placer;
    return function_->writes();
  }
  bool has_state() const override { return false; }
  void save(PositionWriter& state) const override { input_.save(state); }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override { return input_.position(); }

 private:
  Input input_;
  std::shared_ptr<const MappedFunction> function_;
  Stage& stage_;
  std::optional<RowPlacer> own_;
  RowPlacer* placer_ = nullptr;
};

class MapNode final : public DatasetNode {
 public:
  MapNode(NodePtr input, MappedFunction function)
      : input_(std::move(input)),
        function_(std::make_shared<MappedFunction>(std::move(function))) {}

  std::string name() const override { return function_->name(); }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return function_->options().spec; }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    return function_->options().on_error == OnError::Skip && input > 0 ? kUnknown : input;
  }
  std::string signature() const override { return input_->signature() + ".map"; }
  ShareRules share_rules() const override {
    const MapOptions& options = function_->options();
    const bool all = options.on_error == OnError::Raise;
    return {.rows = options.rowwise && all ? ShareRules::Rows::OfInputs : ShareRules::Rows::OfWhole,
            .one_to_one = options.deterministic && all};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    Stage& stage = context.runtime->stage(*this);
    if (function_->options().parallel == 1) {
      return std::make_unique<MapCursor>(input_, context, function_, stage);
    }
    return make_parallel_map_cursor(input_, context, function_, stage);
  }

 private:
  NodePtr input_;
  std::shared_ptr<const MappedFunction> function_;
};

template <class Function>
std::vector<ElementSpec> result_for_zeros(const DatasetNode& input, const Function& function) {
  Element zeros;
  for (const ElementSpec& component : input.element_spec()) {
    require(!component.varies,
            "[map] the elements ({}) have different extents, so the function cannot be called with "
            "zeros to learn what it returns; set .spec",
            describe(input.element_spec()));
    zeros.emplace_back(component.dtype, component.shape);
  }
  std::vector<ElementSpec> spec;
  for (const Tensor& tensor : function(zeros)) {
    require(tensor.defined(), "[map] the function returned an undefined tensor");
    spec.push_back({tensor.dtype(), tensor.shape()});
  }
  return spec;
}

void check(const MapOptions& options) {
  require(options.parallel > 0 || options.parallel == AUTOTUNE,
          "[map] .parallel must be at least 1 or AUTOTUNE, not {}", options.parallel);
}

void check_not_rowwise(const MapOptions& options) {
  require(!options.rowwise,
          "[map] .rowwise is for functions of batches that return a new element and draw no random "
          "numbers: a worker that maps only its rows of a batch would draw others");
}

}  // namespace

NodePtr make_map(NodePtr input, MapFunction function, MapOptions options) {
  require(function != nullptr, "[map] the function is null");
  check(options);
  if (options.spec.empty()) options.spec = result_for_zeros(*input, function);
  return std::make_shared<MapNode>(std::move(input),
                                   MappedFunction(std::move(function), std::move(options)));
}

NodePtr make_map(NodePtr input, RandomMapFunction function, MapOptions options) {
  require(function != nullptr, "[map] the function is null");
  check(options);
  check_not_rowwise(options);
  if (options.spec.empty()) {
    options.spec = result_for_zeros(*input, [&](const Element& zeros) {
      RandomSequence random(options.seed, 0);
      return function(zeros, random);
    });
  }
  return std::make_shared<MapNode>(std::move(input),
                                   MappedFunction(std::move(function), std::move(options)));
}

NodePtr make_map_into(NodePtr input, WriteFunction function, MapOptions options) {
  require(function != nullptr, "[map_into] the function is null");
  check(options);
  check_not_rowwise(options);
  require(!options.spec.empty(), "[map_into] .spec is required: it says what the function writes");
  for (const ElementSpec& component : options.spec) {
    require(!component.varies, "[map_into] .spec must have fixed extents");
  }
  return std::make_shared<MapNode>(std::move(input),
                                   MappedFunction(std::move(function), std::move(options)));
}

}  // namespace lockstep
