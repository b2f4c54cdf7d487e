// The elements for which a user's predicate returns true.
//
// If the predicate throws, its element has not been returned yet: the position holds it, and after
// a restore it is tested first.
#include <utility>

#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

struct Test {
  Predicate predicate;
  FilterOptions options;

  std::string name() const { return options.name.empty() ? "filter" : "filter " + options.name; }

  bool operator()(const Element& element) const {
    try {
      return predicate(element);
    } catch (...) {
      rethrow_at(name(), element.sample);
    }
  }
};

class FilterCursor final : public Cursor {
 public:
  FilterCursor(NodePtr input, const Context& context, std::shared_ptr<const Test> test,
               Stage& stage)
      : test_(std::move(test)), stage_(stage), input_(std::move(input), context) {}

  std::optional<Element> next() override {
    if (error_) std::rethrow_exception(error_);
    for (;;) {
      std::optional<Element> element =
          pending_ ? std::exchange(pending_, std::nullopt) : input_.next();
      if (!element) return std::nullopt;
      if (input_.context().runtime->ending) {
        pending_ = std::move(element);
        fail<UsageError>("[{}] the iterator was destroyed", test_->name());
      }
      try {
        if ((*test_)(*element)) return element;
      } catch (const Error& error) {
        if (test_->options.on_error == OnError::Skip) {
          input_.context().runtime->skipped(stage_, error.what());
        } else {
          pending_ = std::move(element);
          error_ = std::current_exception();
          throw;
        }
      }
    }
  }

  void save(PositionWriter& state) const override {
    state.word(pending_ ? 1 : 0);
    if (pending_) state.element(*pending_);
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    if (state.count(1) == 1) pending_ = restored_element(state, input_.node()->element_spec());
    input_.restore(state);
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  std::shared_ptr<const Test> test_;
  Stage& stage_;
  std::optional<Element> pending_;  // taken from the input, but its test did not finish
  std::exception_ptr error_;
  Input input_;
};

class FilterNode final : public DatasetNode {
 public:
  FilterNode(NodePtr input, Test test)
      : input_(std::move(input)), test_(std::make_shared<Test>(std::move(test))) {}

  std::string name() const override { return test_->name(); }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : kUnknown; }
  std::string signature() const override { return input_->signature() + ".filter"; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<FilterCursor>(input_, context, test_, context.runtime->stage(*this));
  }

 private:
  NodePtr input_;
  std::shared_ptr<const Test> test_;
};

}  // namespace

NodePtr make_filter(NodePtr input, Predicate predicate, FilterOptions options) {
  require(predicate != nullptr, "[filter] the predicate is null");
  return std::make_shared<FilterNode>(
      std::move(input), Test{.predicate = std::move(predicate), .options = std::move(options)});
}

}  // namespace lockstep
