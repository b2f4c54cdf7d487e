// Prints tensors like NumPy: numbers in columns of one width, with as many digits as it takes to
// tell them apart (at most eight after the point), and without the middle of large tensors.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>

#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kWhole = 1000;     // with more elements, the middle is left out
constexpr std::int64_t kEdge = 3;         // elements then printed at either end of an axis
constexpr std::size_t kWidth = 75;        // characters per line
constexpr std::size_t kMostDecimals = 8;  // after the point
const std::string kHead = "Tensor(";

// The indices of an axis that are printed; -1 stands for the ones left out.
std::vector<std::int64_t> written(std::int64_t extent, bool summarize) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < extent; ++i) {
    if (summarize && extent > 2 * kEdge && i == kEdge) {
      indices.push_back(-1);
      i = extent - kEdge;
    }
    indices.push_back(i);
  }
  return indices;
}

// The shortest text in this format that reads back as the same number.
template <class T>
std::string shortest(T value, std::chars_format form) {
  char text[512];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), value, form);
  return std::string(text, end);
}

// How many decimals a number needs, at most kMostDecimals.
template <class T>
std::size_t decimals_of(T value, std::chars_format form) {
  const std::string text = shortest(value, form);
  const std::size_t point = text.find('.');
  if (point == std::string::npos) return 0;
  return std::min(kMostDecimals, std::min(text.find('e'), text.size()) - point - 1);
}

// The texts of numbers that are printed together.
template <class T>
std::vector<std::string> floats(const std::vector<T>& values) {
  T largest = 0;
  T smallest = std::numeric_limits<T>::infinity();
  for (const T value : values) {
    if (!std::isfinite(value) || value == 0) continue;
    largest = std::max(largest, std::abs(value));
    smallest = std::min(smallest, std::abs(value));
  }
  const bool scientific =
      largest > 0 && (largest >= T(1e8) || smallest < T(1e-4) || largest / smallest > T(1000));
  const std::chars_format form =
      scientific ? std::chars_format::scientific : std::chars_format::fixed;
  std::size_t decimals = 0;
  for (const T value : values) {
    if (std::isfinite(value)) decimals = std::max(decimals, decimals_of(value, form));
  }
  std::vector<std::string> texts;
  for (const T value : values) {
    if (!std::isfinite(value)) {
      texts.push_back(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    } else if (scientific) {
      texts.push_back(fmt::format("{:.{}e}", value, decimals));
    } else {
      // Trailing zeros are printed as blanks, so that the points line up.
      const std::size_t own = decimals_of(value, form);
      texts.push_back(fmt::format("{:#.{}f}", value, own) + std::string(decimals - own, ' '));
    }
  }
  return texts;
}

class Printer {
 public:
  explicit Printer(const Tensor& tensor)
      : tensor_(tensor), summarize_(tensor.elements() > kWhole), indent_(kHead.size()) {}

  std::string run() {
    collect(tensor_);
    if (is_floating(tensor_.dtype())) {
      texts_ = tensor_.dtype() == DType::F64
                   ? floats(numbers_)
                   : floats(std::vector<float>(numbers_.begin(), numbers_.end()));
    }
    std::size_t width = 0;
    for (const std::string& text : texts_) width = std::max(width, text.size());
    for (std::string& text : texts_) text.insert(0, width - text.size(), ' ');
    write(tensor_.shape(), 0);
    return std::move(out_);
  }

 private:
  // Collects the elements that are printed, in order.
  void collect(const Tensor& part) {
    if (part.shape().rank() > 0) {
      for (const std::int64_t i : written(part.shape()[0], summarize_)) {
        if (i >= 0) collect(part[i]);
      }
      return;
    }
    dispatch(part.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const T value = *reinterpret_cast<const T*>(part.raw());
      if constexpr (std::is_same_v<T, bool>) {
        texts_.emplace_back(value ? "true" : "false");
      } else if constexpr (std::is_integral_v<T>) {
        texts_.push_back(std::to_string(value));
      } else {
        numbers_.push_back(static_cast<double>(value));
      }
    });
  }

  void write(const Shape& shape, int axis) {
    if (axis == shape.rank()) {
      out_ += texts_[next_++];
      return;
    }
    const bool innermost = axis + 1 == shape.rank();
    out_ += '[';
    bool first = true;
    for (const std::int64_t i : written(shape[axis], summarize_)) {
      if (!first) separate(shape, axis, innermost && i >= 0 ? texts_[next_].size() : 3);
      first = false;
      if (i < 0) {
        out_ += "...";
      } else {
        write(shape, axis + 1);
      }
    }
    out_ += ']';
  }

  // Separates numbers by a blank, or by a line break if the next one does not fit; rows by a line
  // break; matrices by an empty line as well.
  void separate(const Shape& shape, int axis, std::size_t next) {
    const bool innermost = axis + 1 == shape.rank();
    const std::size_t line = out_.size() - (out_.rfind('\n') + 1);  // npos + 1 is 0
    if (innermost && line + indent_ + 1 + next < kWidth) {
      out_ += ' ';
      return;
    }
    const int lines = innermost ? 1 : shape.rank() - axis - 1;
    out_ += std::string(static_cast<std::size_t>(lines), '\n');
    out_ += std::string(kHead.size() + static_cast<std::size_t>(axis) + 1, ' ');
    indent_ = 0;  // only for the first line: the others contain their own
  }

  const Tensor& tensor_;
  bool summarize_;
  std::size_t indent_;
  std::vector<double> numbers_;
  std::vector<std::string> texts_;
  std::size_t next_ = 0;
  std::string out_;
};

}  // namespace

std::string Tensor::str() const {
  if (!defined()) return "Tensor()";
  if (!buffer_->device().shares_host_memory()) return on_host(*this).str();
  return fmt::format("{}{}, shape={}, dtype={})", kHead, Printer(*this).run(), shape_,
                     name_of(dtype_));
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) {
  return stream << tensor.str();
}

std::ostream& operator<<(std::ostream& stream, const std::vector<Tensor>& tensors) {
  stream << '[';
  for (std::size_t i = 0; i < tensors.size(); ++i) stream << (i > 0 ? ",\n " : "") << tensors[i];
  return stream << ']';
}

}  // namespace lockstep
