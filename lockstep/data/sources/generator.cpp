// Elements from a user's function. Its position is the number of calls, since a function has no
// other state that could be saved. To restore it, the function is called as many times again, and
// the report says so, unless the user provides a way to start anywhere (GeneratorOptions::seek) or
// to save and resume its state (GeneratorOptions::resume).
#include <algorithm>
#include <exception>

#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

// A generator that fails this often in a row ends the pass, whatever on_error says.
constexpr int kMostFailuresInARow = 1000;

struct Source {
  Generator generator;
  GeneratorOptions options;

  // Whether a position is restored by making all elements before it again.
  bool replays() const { return !options.seek && !options.resume; }
  std::string name() const {
    return options.name.empty() ? "generator" : "generator " + options.name;
  }
};

class GeneratorCursor final : public Cursor {
 public:
  GeneratorCursor(std::shared_ptr<const Source> source, const Context& context, Stage& stage)
      : source_(std::move(source)), context_(context), stage_(stage) {
    if (source_->replays()) {
      stage_.noted(
          "to resume from a saved position it makes all elements before it again; set "
          "GeneratorOptions::seek or resume to avoid that.");
    }
  }

  std::optional<Element> next() override {
    if (error_) std::rethrow_exception(error_);
    if (ended_) return std::nullopt;
    try {
      open();
      std::optional<Element> element = call();
      ended_ = !element;
      return element;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  std::int64_t skip(std::int64_t count) override {
    const GeneratorOptions& options = source_->options;
    const bool counted = options.cardinality && options.on_error == OnError::Raise;
    if (!options.seek || !counted || error_) return Cursor::skip(count);
    const std::int64_t passed =
        std::min(count, std::max<std::int64_t>(0, *options.cardinality - calls_));
    calls_ += passed;
    if (passed > 0) function_ = nullptr;
    return passed;
  }

  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(calls_));
    state.word(ended_ ? 1 : 0);
    if (!source_->options.resume) return;
    const std::optional<std::string> now = state_now();
    state.word(now ? 1 : 0);
    if (now) state.text(*now);
  }
  void restore(PositionReader& state) override {
    calls_ = state.count(std::numeric_limits<std::int64_t>::max());
    ended_ = state.count(1) == 1;
    if (source_->options.resume && state.count(1) == 1) resumed_ = state.text();
  }

 private:
  std::string place(std::int64_t number) const {
    const SampleId sample{.epoch = context_.epoch, .number = static_cast<std::uint64_t>(number)};
    return fmt::format("[{}] {}: ", source_->name(), describe(sample));
  }

  // The state that the user's pass saved; nullopt at the beginning.
  std::optional<std::string> state_now() const {
    if (function_ == nullptr) return resumed_;
    try {
      return save_();
    } catch (...) {
      rethrow_at(fmt::format("[{}] saving the state after {} elements of epoch {}: ",
                             source_->name(), calls_, context_.epoch));
    }
  }

  // Begins the pass at element calls_.
  void open() {
    if (function_ != nullptr) return;
    try {
      if (source_->options.seek) {
        function_ = source_->options.seek(context_.epoch, calls_);
      } else if (source_->options.resume) {
        SavingPass pass = source_->options.resume(context_.epoch, resumed_);
        require(pass.save != nullptr, "the generator returned no save function");
        function_ = std::move(pass.next);
        save_ = std::move(pass.save);
      } else {
        function_ = source_->generator(context_.epoch);
      }
      require(function_ != nullptr, "the generator returned no function");
    } catch (...) {
      rethrow_at(fmt::format("[{}] the beginning of epoch {}: ", source_->name(), context_.epoch));
    }
    if (source_->replays()) pass_former_calls();
  }

  void pass_former_calls() {
    if (calls_ == 0) return;
    stage_.noted(fmt::format("made {} elements again to reach a restored position.", calls_));
    for (std::int64_t number = 0; number < calls_; ++number) {
      bool there = true;
      try {
        there = function_().has_value();
      } catch (...) {
        if (source_->options.on_error == OnError::Raise) rethrow_at(place(number));
      }
      require(there,
              "[{}] epoch {} ends after {} elements, but the position is after {}: the generator "
              "has changed since",
              source_->name(), context_.epoch, number, calls_);
    }
  }

  std::optional<Element> call() {
    for (int failures = 0;; ++failures) {
      std::optional<Element> element;
      const std::int64_t number = calls_;
      try {
        try {
          element = function_();
        } catch (...) {
          rethrow_at(place(number));
        }
      } catch (const Error& error) {
        if (source_->options.on_error == OnError::Raise) throw;
        if (failures == kMostFailuresInARow) {
          fail<DataError>("{} (and the {} elements before it failed, too)", error.what(), failures);
        }
        context_.runtime->skipped(stage_, error.what());
        ++calls_;
        continue;
      }
      if (!element) return std::nullopt;
      check(*element, number);
      element->sample = {.epoch = context_.epoch, .number = static_cast<std::uint64_t>(number)};
      ++calls_;
      return element;
    }
  }

  void check(const Element& element, std::int64_t number) const {
    const std::vector<ElementSpec>& spec = source_->options.spec;
    require(element.size() == spec.size(),
            "{}the generator returned {} components instead of {} ({})", place(number),
            element.size(), spec.size(), describe(spec));
    for (std::size_t i = 0; i < spec.size(); ++i) {
      const Tensor& tensor = element[i];
      require(tensor.defined(), "{}component {} is an undefined tensor", place(number), i);
      const bool fits = spec[i].varies ? tensor.shape().rank() == spec[i].shape.rank()
                                       : tensor.shape() == spec[i].shape;
      require(tensor.dtype() == spec[i].dtype && fits, "{}component {} is {} {}, but .spec is ({})",
              place(number), i, name_of(tensor.dtype()), tensor.shape(), describe(spec));
    }
  }

  std::shared_ptr<const Source> source_;
  Context context_;
  Stage& stage_;
  std::function<std::optional<Element>()> function_;
  std::function<std::string()> save_;   // with .resume
  std::optional<std::string> resumed_;  // the state that the pass began with
  std::int64_t calls_ = 0;              // the number of the next element
  bool ended_ = false;
  std::exception_ptr error_;
};

class GeneratorNode final : public DatasetNode {
 public:
  explicit GeneratorNode(Source source) : source_(std::make_shared<Source>(std::move(source))) {}

  std::string name() const override { return source_->name(); }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override { return source_->options.spec; }
  std::int64_t cardinality() const override {
    if (source_->options.on_error == OnError::Skip) return kUnknown;
    return source_->options.cardinality.value_or(kUnknown);
  }
  bool may_start_early() const override { return false; }
  std::string signature() const override {
    return fmt::format("{}({}{})", source_->name(), describe(source_->options.spec),
                       source_->options.resume ? ", with a state" : "");
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<GeneratorCursor>(source_, context, context.runtime->stage(*this));
  }

 private:
  std::shared_ptr<const Source> source_;
};

}  // namespace

NodePtr make_generator(Generator generator, GeneratorOptions options) {
  require(generator != nullptr || options.seek != nullptr || options.resume != nullptr,
          "[generator] the generator is null");
  require(options.seek == nullptr || options.resume == nullptr,
          "[generator] .seek and .resume exclude each other: set only one");
  require(!options.spec.empty(),
          "[generator] .spec is required: it says what the generator returns");
  require(!options.cardinality || *options.cardinality >= 0,
          "[generator] .cardinality must be 0 or more, not {}; leave it out if it is unknown",
          options.cardinality.value_or(0));
  return std::make_shared<GeneratorNode>(
      Source{.generator = std::move(generator), .options = std::move(options)});
}

}  // namespace lockstep
