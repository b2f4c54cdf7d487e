// --augment: how training samples are varied by chance. Every sample of an epoch is drawn from its
// own number, so that runs repeat.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image/reader.h"

namespace lockstep::cli {

// None: as for testing. Flip: left for right in half of them. Crop: a random part, and flipped (of
// small pictures in memory: moved by up to an eighth). Strong: that, and colours vary.
enum class Augment { None, Flip, Crop, Strong };

Augment augment_by_name(const std::string& name);  // UsageError with the names
// "none, flip, crop, strong"
std::string augment_names();

// Of pictures that are read from files.
void augment(ImageReaderOptions& reader, Augment how);
// Of samples (height, width, channels) that are in memory already. UsageError where they are no
// pictures, or how is Strong.
Dataset augmented(const Dataset& samples, Augment how, std::uint64_t seed);

}  // namespace lockstep::cli
