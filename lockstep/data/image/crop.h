// Which part of a picture becomes the sample.
#pragma once

#include "lockstep/base/random.h"
#include "lockstep/data/image/image.h"

namespace lockstep {

// A part of a random area (as a fraction of the picture's) and a random ratio of width to height,
// as torchvision.transforms.RandomResizedCrop takes it.
struct RandomResizedCrop {
  float min_area = 0.08f;
  float max_area = 1.0f;
  float min_ratio = 3.0f / 4.0f;
  float max_ratio = 4.0f / 3.0f;
  int tries = 10;  // then the middle, with a ratio within the bounds
};

// UsageError where the bounds contradict each other.
void check(const RandomResizedCrop& options);

// How many numbers are drawn depends on the picture's size alone.
ImageRegion random_resized_crop(const ImageInfo& info, const RandomResizedCrop& options,
                                RandomSequence& random);

// The largest part with the ratio of width : height, in the middle, as Keras's crop_to_aspect_ratio
// takes it; smaller by `fraction` a side.
ImageRegion crop_to_aspect(const ImageInfo& info, int width, int height, double fraction = 1);

}  // namespace lockstep
