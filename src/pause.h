// Waiting without burning a core that a computing rank may need.
#ifndef PAUSE_H
#define PAUSE_H

#ifdef __cplusplus
extern "C" {
#endif

// Called once per look that found nothing: yields for the first looks, then sleeps, longer up to about 0.1 ms. `tries` starts at 0 for
// each wait.
void pause_briefly(int *tries);

#ifdef __cplusplus
}
#endif

#endif
