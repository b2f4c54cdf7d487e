// BucketCuts: how lists of gradients are cut into buckets. Ranks trace graphs of different sizes,
// on different machines, in which gradients may be finished in another order: all must cut as one
// of them did. Cuts are identified by the names of the parameters, so that they can be agreed by
// value.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

class BucketCuts {
 public:
  // For each member of a list the name of its parameter; "" for what is not a gradient.
  using Names = std::vector<std::string>;
  // Members of each bucket, by their positions in the list.
  using Members = std::vector<std::vector<std::size_t>>;

  const Members* find(const Names& names) const;
  const Members& remember(Names names, Members members);
  bool empty() const { return known_.empty(); }
  bool operator==(const BucketCuts&) const = default;

  // As text, for other processes; the same cuts give the same text.
  std::string serialize() const;
  // DataError if the text does not put every member of its lists into exactly one bucket.
  static BucketCuts parse(const std::string& text);

 private:
  std::map<Names, Members> known_;
};

}  // namespace lockstep
