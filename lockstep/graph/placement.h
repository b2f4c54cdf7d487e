// Placement: how a value or variable is stored on the ranks of one axis of the mesh. A strategy is
// a choice of placements (docs/architecture.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {

// The axis along which batches are divided; the only one so far.
inline constexpr const char* kDataAxis = "data";

struct Placement {
  enum class Kind : std::uint8_t {
    Replicated,  // the same bits on every rank
    Sharded,     // a slice on each rank, along `dim`; slices may be uneven or empty
    Partial,     // the value is the reduction over the ranks: a gradient before all-reduce
    Local,       // every rank has its own value; only an explicit reduction makes it Replicated
  };
  enum class Reduction : std::uint8_t { Sum, Max, Min };
  // Instead of a dimension: a slice of a bucket's flattened members (base/slice.h).
  static constexpr int kFlat = -1;

  Kind kind = Kind::Replicated;
  int dim = 0;                           // of Sharded
  Reduction reduction = Reduction::Sum;  // of Partial

  static Placement replicated() { return {}; }
  static Placement sharded(int dim) { return {.kind = Kind::Sharded, .dim = dim}; }
  static Placement sharded_flat() { return sharded(kFlat); }
  static Placement partial(Reduction reduction = Reduction::Sum) {
    return {.kind = Kind::Partial, .reduction = reduction};
  }
  static Placement local() { return {.kind = Kind::Local}; }

  bool is_replicated() const { return kind == Kind::Replicated; }
  bool is_sharded() const { return kind == Kind::Sharded; }
  bool is_flat() const { return is_sharded() && dim == kFlat; }
  bool is_partial() const { return kind == Kind::Partial; }
  bool is_local() const { return kind == Kind::Local; }
  bool operator==(const Placement&) const = default;
  std::string str() const;  // "Replicated", "Sharded(0)", "Sharded(flat)", "Partial(sum)", "Local"
};

// One placement for each axis of the mesh; Replicated on those that are not mentioned.
class Placements {
 public:
  Placements() = default;
  // On the axis `data`.
  Placements(const Placement& on_data) { set(kDataAxis, on_data); }  // NOLINT: one is all there is

  Placement on(std::string_view axis) const;
  void set(std::string_view axis, const Placement& placement);
  bool operator==(const Placements&) const = default;
  std::string str() const;  // "data=Sharded(0)"; "" where it is Replicated on all

 private:
  std::map<std::string, Placement, std::less<>> by_axis_;  // never Replicated
};

}  // namespace lockstep
