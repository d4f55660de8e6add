# Sourced by the batch script of a job: at the time limit Slurm signals every process of the job, the shell too. A shell
# that ends takes the job with it, before the run has saved. With a trap it waits for its child; the child has its own.
trap : TERM
