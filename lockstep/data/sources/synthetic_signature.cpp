// Noise for any spec, generated when it is requested: every sample has its own random key.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/base/random.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/transformations.h"

namespace lockstep::datasets {
namespace {

// The nearest bfloat16; ties to even.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounds toward zero; subnormal results become 0. Good enough for noise, which never overflows.
std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127 + 15;
  if (exponent <= 0) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent) << 10 |
                                    (bits >> 13 & 0x3FF));
}

// The random words of a tensor, four from every Philox block.
class Words {
 public:
  explicit Words(PhiloxKey key) : key_(key) {}

  std::uint32_t next() {
    if (at_ == 4) {
      block_ = philox(key_, {static_cast<std::uint32_t>(counter_),
                             static_cast<std::uint32_t>(counter_ >> 32), 0, 0});
      ++counter_;
      at_ = 0;
    }
    return block_[at_++];
  }

  // Box-Muller; the second number of each pair is kept for the next call.
  float normal() {
    if (has_other_) {
      has_other_ = false;
      return other_;
    }
    const float radius = std::sqrt(-2.0f * std::log(1.0f - to_unit_float(next())));
    const float angle = 2.0f * std::numbers::pi_v<float> * to_unit_float(next());
    other_ = radius * std::sin(angle);
    has_other_ = true;
    return radius * std::cos(angle);
  }

  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t high = next();
    return (high << 32 | next()) % bound;
  }

 private:
  PhiloxKey key_;
  std::uint64_t counter_ = 0;
  PhiloxBlock block_ = {};
  std::size_t at_ = 4;
  float other_ = 0;
  bool has_other_ = false;
};

void fill(Tensor& tensor, std::int64_t classes, Words words) {
  const auto each = [&]<class T>(T, auto make) {
    for (T& value : tensor.values<T>()) value = static_cast<T>(make());
  };
  const auto label = [&] { return words.below(static_cast<std::uint64_t>(classes)); };
  switch (tensor.dtype()) {
    case DType::F32:
      return each(float{}, [&] { return words.normal(); });
    case DType::F64:
      return each(double{}, [&] { return words.normal(); });
    case DType::I32:
      return each(std::int32_t{}, label);
    case DType::I64:
      return each(std::int64_t{}, label);
    case DType::U8:
      return each(std::uint8_t{}, [&] { return words.next() >> 24; });
    case DType::Bool:
      return each(bool{}, [&] { return words.next() >> 31; });
    case DType::F16:
    case DType::BF16:
      break;
  }
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const float value = words.normal();
    const std::uint16_t half = tensor.dtype() == DType::F16 ? to_f16(value) : to_bf16(value);
    std::memcpy(tensor.raw() + 2 * i, &half, 2);
  }
}

struct Source {
  std::vector<ElementSpec> spec;
  SyntheticSignatureOptions options;

  Element sample(std::int64_t number) const {
    Element element;
    for (std::size_t i = 0; i < spec.size(); ++i) {
      Words words(make_key(options.seed, combine(combine(hash_name("synthetic"), i),
                                                 static_cast<std::uint64_t>(number))));
      std::vector<std::int64_t> dims(spec[i].shape.dims().begin(), spec[i].shape.dims().end());
      for (std::int64_t& extent : dims) {
        if (!spec[i].varies || extent == 0) continue;
        extent = 1 + static_cast<std::int64_t>(words.below(static_cast<std::uint64_t>(extent)));
      }
      Tensor tensor(spec[i].dtype, Shape(std::move(dims)));
      fill(tensor, options.classes, words);
      element.push_back(std::move(tensor));
    }
    return element;
  }
};

class SyntheticCursor final : public Cursor {
 public:
  SyntheticCursor(std::shared_ptr<const Source> source, std::uint64_t epoch)
      : source_(std::move(source)), epoch_(epoch) {}

  std::optional<Element> next() override {
    if (at_ == end()) return std::nullopt;
    Element element = source_->sample(at_);
    element.sample = {.epoch = epoch_, .number = static_cast<std::uint64_t>(at_)};
    ++at_;
    return element;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = std::min(count, end() - at_);
    at_ += passed;
    return passed;
  }
  void save(PositionWriter& state) const override { state.word(static_cast<std::uint64_t>(at_)); }
  void restore(PositionReader& state) override { at_ = state.count(end()); }

 private:
  std::int64_t end() const {
    return source_->options.count < 0 ? std::numeric_limits<std::int64_t>::max()
                                      : source_->options.count;
  }

  std::shared_ptr<const Source> source_;
  std::uint64_t epoch_;
  std::int64_t at_ = 0;
};

class SyntheticNode final : public DatasetNode {
 public:
  explicit SyntheticNode(Source source) : source_(std::make_shared<Source>(std::move(source))) {}

  std::string name() const override { return "synthetic"; }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override { return source_->spec; }
  std::int64_t cardinality() const override {
    return source_->options.count < 0 ? kInfinite : source_->options.count;
  }
  std::string signature() const override {
    return fmt::format("synthetic({}, seed {}, {} classes: {})", source_->options.count,
                       source_->options.seed, source_->options.classes, describe(source_->spec));
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<SyntheticCursor>(source_, context.epoch);
  }

 private:
  std::shared_ptr<const Source> source_;
};

}  // namespace

Dataset synthetic(std::vector<ElementSpec> spec, SyntheticSignatureOptions options) {
  require(!spec.empty(), "[synthetic] a sample needs at least one component");
  require(options.count >= -1 && options.classes > 0,
          "[synthetic] .count must be 0 or more, or -1 for forever, and .classes at least 1, not "
          "{} and {}",
          options.count, options.classes);
  return Dataset(
      std::make_shared<SyntheticNode>(Source{.spec = std::move(spec), .options = options}));
}

}  // namespace lockstep::datasets
