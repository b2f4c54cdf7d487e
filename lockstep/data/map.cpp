// A function of the user's applied to every element. Elements that are passed over or that a
// restore only counts are not computed.
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class MapCursor final : public Cursor {
 public:
  MapCursor(std::unique_ptr<Cursor> input, std::shared_ptr<const MapFunction> function)
      : input_(std::move(input)), function_(std::move(function)) {}

  std::optional<Element> next() override {
    const std::optional<Element> element = input_->next();
    if (!element) return std::nullopt;
    return (*function_)(*element);
  }
  std::int64_t skip(std::int64_t count) override { return input_->skip(count); }
  void save(PositionWriter& position) const override { input_->save(position); }
  void restore(PositionReader& position) override { input_->restore(position); }

 private:
  std::unique_ptr<Cursor> input_;
  std::shared_ptr<const MapFunction> function_;
};

class MapNode final : public DatasetNode {
 public:
  MapNode(NodePtr input, MapFunction function, std::vector<ElementSpec> spec)
      : input_(std::move(input)),
        function_(std::make_shared<MapFunction>(std::move(function))),
        spec_(std::move(spec)) {}

  std::vector<ElementSpec> element_spec() const override { return spec_; }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature() + ".map"; }
  std::unique_ptr<Cursor> cursor(std::uint64_t epoch) const override {
    return std::make_unique<MapCursor>(input_->cursor(epoch), function_);
  }

 private:
  NodePtr input_;
  std::shared_ptr<const MapFunction> function_;
  std::vector<ElementSpec> spec_;
};

std::vector<ElementSpec> result_for_zeros(const DatasetNode& input, const MapFunction& function) {
  Element zeros;
  for (const ElementSpec& component : input.element_spec()) {
    zeros.emplace_back(component.dtype, component.shape);
  }
  std::vector<ElementSpec> spec;
  for (const Tensor& tensor : function(zeros)) {
    require(tensor.defined(), "[map] the function returned a component that is no tensor");
    spec.push_back({tensor.dtype(), tensor.shape()});
  }
  return spec;
}

}  // namespace

NodePtr make_map(NodePtr input, MapFunction function, MapOptions options) {
  require(function != nullptr, "[map] there is no function");
  std::vector<ElementSpec> spec = std::move(options.spec);
  if (spec.empty()) spec = result_for_zeros(*input, function);
  return std::make_shared<MapNode>(std::move(input), std::move(function), std::move(spec));
}

}  // namespace lockstep
